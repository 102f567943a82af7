"""Imports of a kernel's file, read without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from corepipe.nki.core.errors import Site
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.rules.breaking import found

LEGACY_ROOT, ROOT = "neuronxcc.nki", "nki"


def find_imports(recorder: Recorder, file: str) -> None:
    """Notes a file that imports both dialects; imports under a condition are alternatives."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # it runs, from wherever it came
    names = list(_imported(tree))
    legacy = [line for name, line in names if f"{name}.".startswith(f"{LEGACY_ROOT}.")]
    if legacy and any(f"{name}.".startswith(f"{ROOT}.") for name, _ in names):
        found(recorder, "two_dialects", Site(file, legacy[0]))


def _imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yields the modules that a file imports whatever happens, with their lines."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
