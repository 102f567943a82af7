"""The modules of both dialects under the names by which kernels import them, inside a block alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from corepipe.nki.core.errors import KernelError
from corepipe.nki.core.recorder import outside
from corepipe.nki.dialects.current.modules import modules as current
from corepipe.nki.dialects.kernels import Runner
from corepipe.nki.dialects.legacy.modules import modules as legacy

ROOTS = ("neuronxcc", "nki")
"""Packages whose modules are ours within the block."""


@contextmanager
def installed(runner: Runner) -> Iterator[None]:
    """Gives kernels their modules within the block, and takes them away after it.

    What was imported under these names before is there again after the block, and hidden within it.
    """
    hidden = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ROOTS}
    for name in hidden:
        del sys.modules[name]
    sys.modules.update(made(runner))
    try:
        yield
    finally:
        for name in [n for n in sys.modules if n.split(".")[0] in ROOTS]:
            del sys.modules[name]
        sys.modules.update(hidden)


@cache
def made(runner: Runner) -> dict[str, ModuleType]:
    """Returns the modules by name; a package has its modules as attributes."""
    found: dict[str, ModuleType] = {}
    for name, names in (legacy(runner) | current(runner)).items():
        found[name] = _module(name, names)
        package, _, last = name.rpartition(".")
        if package:
            setattr(found[package], last, found[name])
    return found


def _module(name: str, names: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(name, "Stands for the module of AWS's SDK.")
    vars(module)["__path__"] = []  # so that `import package.module` looks for modules in it
    for key, value in names.items():
        setattr(module, key, value)
    short = {"language": "nl", "isa": "nisa"}.get(name.rpartition(".")[2], name)

    def missing(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise KernelError(f"{short}.{attribute} is not supported; docs/nki.md lists what is", outside())

    vars(module)["__getattr__"] = missing
    return module
