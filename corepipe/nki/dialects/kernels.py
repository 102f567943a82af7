"""Kernels as their decorators make them: called within a kernel they run inline, called from outside they are
run and timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any

from corepipe.nki.core.recorder import running

Runner = Callable[["Kernel", Sequence[Any], Mapping[str, Any]], Any]
"""Runs a kernel that is called from outside of a run, and returns what the caller gets."""


@dataclass(eq=False)
class Kernel:
    """A function of a kernel with the arguments of its decorator.

    legacy: the dialect.  mode: the decorator's name, `jit` or `benchmark`.  grid: programs along each axis.
    """

    function: Callable[..., Any]
    runner: Runner
    legacy: bool = True
    mode: str = "jit"
    options: Mapping[str, Any] = field(default_factory=dict)
    grid: tuple[int, ...] = ()
    benchmark_result: Any = None

    def __post_init__(self) -> None:
        update_wrapper(self, self.function)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if running():
            return self.function(*arguments, **keywords)
        return self.runner(self, arguments, keywords)

    def __getitem__(self, grid: Any) -> Kernel:
        """Returns the kernel with a grid of programs."""
        lengths = grid if isinstance(grid, tuple) else (grid,)
        return Kernel(
            self.function, self.runner, self.legacy, self.mode, self.options, tuple(int(n) for n in lengths)
        )


def decorator(mode: str, runner: Runner, *, legacy: bool) -> Callable[..., Any]:
    """Returns a decorator that works with and without arguments."""

    def decorate(function: Any = None, *_: Any, **options: Any) -> Any:
        if function is None:
            return lambda inner: decorate(inner, **options)
        if isinstance(function, Kernel):
            merged = {**function.options, **options}
            return Kernel(function.function, runner, legacy, mode, merged, function.grid)
        return Kernel(function, runner, legacy, mode, options)

    decorate.__name__ = mode
    return decorate
