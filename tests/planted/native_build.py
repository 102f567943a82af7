"""Builds the kernels of a worker's tree: without optimisations that take long, and one table of an ISA.

What a fault is found by does not depend on the table, which is AVX2's on each machine that has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.planted.trees import Tree

FLAGS = "-O1"
TABLES = "avx2"


def build(tree: Tree) -> Path | None:
    """The module; None where the source does not compile."""
    folder = tree.folder / "native"
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    if not (folder / "build.ninja").exists():
        configure = [
            "cmake", "-G", "Ninja", "-S", tree.root, "-B", folder,
            "-DCMAKE_BUILD_TYPE=Planted",
            f"-DCMAKE_CXX_FLAGS_PLANTED={FLAGS}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DCOREPIPE_TABLES={TABLES}",
        ]  # fmt: skip
        subprocess.run(configure, env=environment, capture_output=True, check=True)
    command = ["cmake", "--build", folder, "--parallel", os.environ.get("WORKERS", "1")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    (module,) = folder.glob("_native*.so")
    return module
