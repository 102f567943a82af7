"""Writes the signatures of the Ops into corepipe/kernels/_native.pyi: python -m tests.kernels.stub

An Op's native signature is defined once, in bind_program.cpp.  nanobind derives Python's signature from it,
and this module copies that into class `Program` of the stub, whose docstrings are kept.  For a new Op, first
add a `def` with a docstring to the stub.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from nanobind.stubgen import StubGen

from corepipe.kernels import native

STUB = Path(__file__).parents[2] / "corepipe" / "kernels" / "_native.pyi"
ARRAY = re.compile(r"Annotated\[NDArray(\[numpy\.\w+\])?, dict\(shape=\([^)]*\), [^)]*\)\]")
"""An array as nanobind writes it; its shape is in the docstrings."""
NAMES = {"[numpy.float32]": "F32", None: "npt.NDArray[Any]"}


def current(stub: str) -> str:
    """Returns the stub with the module's parameters.  Raises ValueError where either lacks a method."""
    bound = {method.name: method.args for method in _methods(_generated())}
    methods = _methods(stub)
    if different := bound.keys() ^ {method.name for method in methods}:
        raise ValueError(f"{STUB.name} and the module do not both have {', '.join(sorted(different))}")
    lines = stub.splitlines(keepends=True)
    for method in reversed(methods):
        first, body = method.lineno - 1, method.body[0]
        rest = lines[body.lineno - 1][body.col_offset :]
        returns = ast.unparse(method.returns or ast.Constant(None))
        header = f"    def {method.name}({ast.unparse(bound[method.name])}) -> {returns}:\n"
        lines[first : body.lineno] = [header, " " * 8 + rest]
    return "".join(lines)


def _generated() -> str:
    """Returns the whole stub as nanobind makes it, with the names of arrays of the written one."""
    generator = StubGen(native(), include_docstrings=False)
    generator.put(native())
    return ARRAY.sub(lambda array: NAMES.get(array[1], array[0]), generator.get())


def _methods(stub: str) -> list[ast.FunctionDef]:
    """Returns the methods of class `Program`."""
    (program,) = (s for s in ast.parse(stub).body if isinstance(s, ast.ClassDef) and s.name == "Program")
    return [method for method in program.body if isinstance(method, ast.FunctionDef)]


if __name__ == "__main__":
    STUB.write_text(current(STUB.read_text()))
    subprocess.run([sys.executable, "-m", "ruff", "format", STUB], check=True)
