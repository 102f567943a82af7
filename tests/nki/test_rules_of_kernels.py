"""Each rule and each finding: the broken kernel is caught at its line, and the mended one is silent."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from corepipe import nki
from corepipe.nki.core.errors import KernelError
from corepipe.nki.rules.rule import BOTH
from corepipe.nki.rules.table import RULES

KERNELS = Path(__file__).parent / "kernels"

ELSEWHERE = {"two_dialects"}
"""Rules of what is not in a kernel; their tests are below."""


def loaded(dialect: str) -> ModuleType:
    path = KERNELS / f"{dialect}_rules.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with nki.installed():
        spec.loader.exec_module(module)
    return module


MODULES = {dialect: loaded(dialect) for dialect in BOTH if (KERNELS / f"{dialect}_rules.py").exists()}


def rule_of(kernel: str) -> str:
    """Returns the rule of a kernel: the longest that its name begins with."""
    return max((name for name in RULES if kernel.startswith(name)), key=len, default="")


KERNELS_OF = [
    (dialect, name)
    for dialect, module in MODULES.items()
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and "mended" in inspect.signature(function).parameters
]


def broken_line(kernel: Callable[..., Any]) -> int:
    lines, first = inspect.getsourcelines(kernel)
    return first + next(i for i, line in enumerate(lines) if line.rstrip().endswith("# broken"))


def seen(dialect: str, name: str, mended: bool, values: bool = True) -> list[tuple[str, int, str]]:
    """Returns what a run finds: rules, lines and messages."""
    kernel = getattr(MODULES[dialect], name)
    x = (np.arange(128 * 512) % 8).reshape(128, 512).astype(np.float32)
    target = getattr(MODULES[dialect], "TARGETS", {}).get(name, "trn1")
    try:
        result = nki.simulate(kernel, x, target=target, values=values, mended=mended)
    except KernelError as error:
        return [(error.rule, error.site.line if error.site else 0, str(error))]
    return [(f.rule, f.site.line, f.message) for f in result.findings]


@pytest.mark.parametrize(("dialect", "name"), KERNELS_OF)
def test_a_broken_kernel_is_caught_at_its_line(dialect: str, name: str) -> None:
    found = seen(dialect, name, mended=False)
    line = broken_line(getattr(MODULES[dialect], name))
    assert (rule_of(name), line) in [(rule, at) for rule, at, _ in found], found
    assert not any("{" in message for _, _, message in found)


@pytest.mark.parametrize(("dialect", "name"), KERNELS_OF)
def test_the_mended_kernel_is_silent(dialect: str, name: str) -> None:
    assert seen(dialect, name, mended=True) == []


@pytest.mark.parametrize("dialect", MODULES)
def test_every_rule_has_a_kernel(dialect: str) -> None:
    rules = {name for name, rule in RULES.items() if dialect in rule.dialects} - ELSEWHERE
    assert rules == {rule_of(name) for where, name in KERNELS_OF if where == dialect}
