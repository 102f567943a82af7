"""Each rule and each finding: the broken kernel is caught at its line, and the mended one is silent."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from corepipe import nki
from corepipe.nki.core.errors import KernelError
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.rules.imports import find_imports
from corepipe.nki.rules.rule import BOTH
from corepipe.nki.rules.table import RULES

KERNELS = Path(__file__).parent / "kernels"

ELSEWHERE = {"two_dialects"}
"""Rules of what is not in a kernel; their tests are below."""


def loaded(dialect: str) -> ModuleType:
    with nki.installed():
        return at(KERNELS / f"{dialect}_rules.py")


def at(path: Path) -> ModuleType:
    """Returns the module of a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULES = {dialect: loaded(dialect) for dialect in BOTH}


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


@pytest.mark.parametrize(
    ("imports", "line"),
    [
        ("import numpy as np\nimport nki\nimport neuronxcc.nki.language as nl\n", 3),
        ("from neuronxcc import nki\nfrom nki import language\n", 1),
        ("import neuronxcc.nki.language as nl\n", 0),
        ("import nki.language as nl\n", 0),
        ("try:\n    import nki\nexcept ImportError:\n    import neuronxcc.nki as nki\n", 0),
    ],
)
def test_a_file_that_imports_both_dialects(tmp_path: Path, imports: str, line: int) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(f"{imports}def kernel(x):\n    return x\n")
    recorder = Recorder("v3", legacy=False)
    find_imports(recorder, str(file))
    assert [f.site.line for f in recorder.findings.values()] == ([line] if line else [])


def test_a_run_reads_the_imports_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(
        "import nki\nimport nki.language as nl\nimport neuronxcc.nki.language as old\n\n\n"
        "@nki.jit\ndef kernel(x):\n    y = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n"
        "    nl.store(y, nl.load(x))\n    return y\n"
    )
    with nki.installed():
        result = nki.simulate(at(file).kernel, np.ones((4, 4), np.float32))
    assert [(f.rule, f.site.line) for f in result.findings] == [("two_dialects", 3)]


SEEN = re.compile(r'(?:refuse|find|found|broken|broken_at)\((?:[\w().]+, )?\s*"(\w+)"')

NOT_OF_THE_DEVICE = {
    "assignment",
    "axes",
    "failed",
    "grid",
    "indirect",
    "missing",
    "register",
    "shuffle_mask",
    "unsupported",
    "view",
}
"""Errors of the simulator, and of calls that have no meaning."""


def test_what_a_run_reports_is_in_the_table() -> None:
    package = Path(nki.__file__).parent
    names = {n for file in package.rglob("*.py") for n in SEEN.findall(file.read_text())}
    assert names - NOT_OF_THE_DEVICE <= set(RULES)
