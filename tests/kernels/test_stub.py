"""The stub of the compiled module has the signatures that the module has."""

from __future__ import annotations

import ast

import pytest

from tests.kernels.stub import STUB, current


def test_signatures_of_ops_are_those_of_the_compiled_module() -> None:
    """Otherwise run `python -m tests.kernels.stub`."""
    stub = STUB.read_text()
    assert ast.dump(ast.parse(current(stub))) == ast.dump(ast.parse(stub))


def test_a_changed_signature_is_written_again_and_its_docstring_kept() -> None:
    stub = STUB.read_text()
    changed = stub.replace("x: int, limit: float, out: int", "x: int, out: int")
    assert changed != stub
    assert ast.dump(ast.parse(current(changed))) == ast.dump(ast.parse(stub))


def test_a_method_that_one_of_both_lacks_is_named() -> None:
    with pytest.raises(ValueError, match=r"_native\.pyi and the module do not both have sort"):
        current(STUB.read_text().replace("    def clamp(", "    def sort(self) -> None: ...\n    def clamp("))
