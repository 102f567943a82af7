"""The modules of `neuronxcc.nki`, with the names that kernels import from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isfunction
from typing import Any

import numpy as np

from corepipe.nki.dialects.kernels import Runner, decorator
from corepipe.nki.dialects.legacy import instructions, language, operands, selections
from corepipe.nki.dialects.legacy.allocation import allocator
from corepipe.nki.dialects.legacy.memory import PSUM, SBUF


class TensorType:
    """`tensor[128, 512]` of annotations, and `tensor[[128, 512], nl.float32]` as an argument."""

    def __init__(self, shape: tuple[int, ...] = (), dtype: Any = np.float32) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)

    def __class_getitem__(cls, key: Any) -> TensorType:
        if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], list | tuple):
            return cls(tuple(int(n) for n in key[0]), key[1])
        return cls(key if isinstance(key, tuple) else (key,))


def _isa() -> dict[str, Any]:
    names: dict[str, Any] = {
        name: _named(value)
        for module in (instructions, selections)
        for name, value in vars(module).items()
        if isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"
    }
    engine = operands.EngineName
    names.update({f"{e.name}_engine": e for e in engine})
    names.update(
        engine=engine,
        reduce_cmd=operands.ReduceName,
        dge_mode=operands.DgeMode,
        oob_mode=operands.OobMode,
        nc_version=operands.NcVersion,
        get_nc_version=operands.get_nc_version,
        fp32=language.names()["fp32"],
    )
    return names


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an instruction that also takes a name, which speaks to the compiler alone."""

    @wraps(function)
    def called(*arguments: Any, name: str = "", **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    return called


def _nki(runner: Runner) -> dict[str, Any]:
    modes = ("jit", "trace", "baremetal", "benchmark", "profile")
    names: dict[str, Any] = {mode: decorator(mode, runner, legacy=True) for mode in modes}

    def simulate_kernel(kernel: Any, *arguments: Any, **keywords: Any) -> Any:
        """Runs a kernel and returns its outputs."""
        return names["jit"](kernel)(*arguments, **keywords)

    return {**names, "simulate_kernel": simulate_kernel, "tensor": TensorType}


def _identity(function: Any = None, *_: Any, **_hints: Any) -> Any:
    """Returns the kernel as it is: the decorator speaks to the compiler."""
    return function if callable(function) else lambda inner: inner


@contextmanager
def _hint(*_: Any, **_hints: Any) -> Iterator[None]:
    """Does nothing: the block speaks to the compiler."""
    yield


def _compiler() -> dict[str, Any]:
    return {
        "sbuf": allocator(SBUF),
        "psum": allocator(PSUM),
        "skip_middle_end_transformations": _identity,
        "enable_stack_allocator": _identity,
        "force_auto_alloc": _identity,
        "allocation_scope": _hint,
        "no_reorder": _hint,
        "multi_buffer": _hint,
    }


def modules(runner: Runner) -> dict[str, dict[str, Any]]:
    """Returns the names of each module, by its own name."""
    return {
        "neuronxcc": {},
        "neuronxcc.nki": _nki(runner),
        "neuronxcc.nki.language": language.names(),
        "neuronxcc.nki.isa": _isa(),
        "neuronxcc.nki.compiler": _compiler(),
        "neuronxcc.nki.typing": {"tensor": TensorType, "mutable_tensor": TensorType},
    }
