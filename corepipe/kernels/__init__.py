"""The native executor: C++ kernels behind `_native`, and the packing of weights for them."""

from __future__ import annotations

import importlib
from types import ModuleType

from corepipe.errors import UserError


def native() -> ModuleType:
    """Returns the compiled module.

    Raises UserError where it is not built, has no kernels for this CPU, or lacks those of COREPIPE_ISA.
    """
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


def check_same_bits() -> None:
    """Raises UserError where this build lacks the kernels that `--bits same` takes on this CPU."""
    try:
        native().same_bits_isa()
    except ValueError as error:
        raise UserError(str(error), "bits") from error
