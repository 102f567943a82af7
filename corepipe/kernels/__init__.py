"""The native executor: C++ kernels behind `_native`, and the packing of weights for them."""

from __future__ import annotations

import importlib
from types import ModuleType

from corepipe.errors import UserError


def native() -> ModuleType:
    """The compiled module.  Raises UserError where it is not built, or COREPIPE_ISA is not to be had."""
    try:
        module = importlib.import_module("corepipe.kernels._native")
    except ImportError as error:
        raise UserError(
            f"native kernels are not built ({error}): install a C++17 compiler and reinstall corepipe"
        ) from error
    try:
        module.isa()
    except ValueError as error:
        raise UserError(str(error)) from error
    return module
