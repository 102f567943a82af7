"""Plants one fault in a worker's tree and looks which test finds it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.planted import BUILD
from tests.planted.areas import NATIVE
from tests.planted.choice import of_long, of_short, stages
from tests.planted.contexts import load
from tests.planted.faults import Fault
from tests.planted.native_build import build
from tests.planted.pytest_run import CRASHED, FULL, HUNG, generous, run
from tests.planted.table import LONG, NONE, SHORT, UNTRIED, Row
from tests.planted.trees import Tree

CHANCES = 3
"""Tests of one run that may fail by chance; what comes after them is not run."""
ALL_OF_THEM = ("-m", "", "--maxfail=1000000")
UNMEASURED_SECONDS = 120.0
"""For a test whose own seconds are not known."""


@dataclass(frozen=True)
class Limits:
    """Seconds for one fault: of tests of the short suite, as measured, and of processor time for each file of
    the long one; 0: the long one is not tried."""

    short: float
    long: float


class Trial:
    """Tries faults in one tree.  A test that fails without a fault there finds nothing, and is left out."""

    def __init__(self, tree: Tree, limits: Limits) -> None:
        self._tree = tree
        self._limits = limits
        self._passes = BUILD / "passes.json"
        self._whole = tree.folder / "whole.so"
        self._has_whole = False

    def row(self, number: int, alternatives: list[Fault], first: Sequence[str] = ()) -> Row:
        """The result of the first alternative that compiles.

        first: tests that are run before those that are chosen, such as what found the fault before.
        """
        begin = time.monotonic()
        fault, by, test = self._tried(alternatives, first)
        spent = round(time.monotonic() - begin)
        return Row(
            number, fault.key, fault.area, fault.path, fault.line, fault.before, fault.after, by, test, spent
        )

    def _tried(self, alternatives: list[Fault], first: Sequence[str]) -> tuple[Fault, str, str]:
        for fault in alternatives:
            self._build_whole(fault)
            with self._planted(fault) as works:
                if works:
                    return fault, *self._found(fault, first)
        return alternatives[0], NONE, "(does not compile)"

    def _build_whole(self, fault: Fault) -> None:
        """Kernels without a fault, for tests that are asked whether they pass without one."""
        if fault.area == NATIVE and not self._has_whole:
            self._has_whole = True
            module = build(self._tree)
            assert module is not None, "the kernels do not compile"
            shutil.copy(module, self._whole)

    @contextmanager
    def _planted(self, fault: Fault) -> Iterator[bool]:
        """True if the test can be run."""
        with self._tree.planted(fault.path, fault.text):
            module = build(self._tree) if fault.area == NATIVE else None
            self._tree.use_kernels(module)
            yield module is not None or fault.area != NATIVE

    def _found(self, fault: Fault, first: Sequence[str]) -> tuple[str, str]:
        """By which suite, and which test."""
        measured = load()
        for test in first:
            if found := self._first(fault, [test], generous(UNMEASURED_SECONDS), ()):
                return SHORT, found
        for stage in stages(of_short(fault, measured), self._limits.short):
            if test := self._first(fault, stage.tests, generous(stage.seconds), ()):
                return SHORT, test
        if not self._limits.long:
            return UNTRIED, "-"
        for file in of_long(fault, measured):
            test = self._first(fault, [file], self._limits.long, ("-m", "slow"))
            if test not in {"", HUNG}:
                return LONG, test
        return NONE, "-"

    def _first(self, fault: Fault, tests: Sequence[str], most: float, more: Sequence[str]) -> str:
        """The first test that fails with the fault and passes without it."""
        left_out: list[str] = []
        while len(left_out) < CHANCES and (asked := [test for test in tests if test not in left_out]):
            without = [f"--deselect={test}" for test in left_out]  # where a file was asked for
            found = run(self._tree, asked, most, [*more, *without]).found
            if found in {"", HUNG, FULL, CRASHED} or self._tells(fault, found, more):
                return found
            print(f"{fault.key}: fails by chance: {found}", flush=True)
            left_out.append(found)
        return ""

    def _tells(self, fault: Fault, test: str, more: Sequence[str]) -> bool:
        """Returns true if a test fails again with the fault, by itself, and passes without it: some fail by
        chance beside other work."""
        again = run(self._tree, [test], generous(UNMEASURED_SECONDS), more).found
        return bool(again) and self._passes_without(fault, test, more)

    def _passes_without(self, fault: Fault, test: str, more: Sequence[str]) -> bool:
        """Returns true if the test passed when it was measured; one that was not measured is run once."""
        one = load().get(test.partition("::")[0])
        if one is not None and test in one.seconds:
            return test not in one.failed
        known = self._known()
        name = f"{test} {fault.area == NATIVE}"
        if name not in known:
            with self._repaired(fault):
                only = [*more, "--collect-only"] if "::" not in test else more
                known[name] = not run(self._tree, [test], generous(UNMEASURED_SECONDS), only).found
            self._passes.write_text(json.dumps(known, indent=0))
        return known[name]

    def _known(self) -> dict[str, bool]:
        return dict(json.loads(self._passes.read_text())) if self._passes.exists() else {}

    def without_a_fault(self, tests: Sequence[str]) -> list[str]:
        """Those of `tests` that fail in the copy of the tree as it is."""
        self._tree.use_kernels(None)
        return run(self._tree, tests, generous(UNMEASURED_SECONDS * len(tests)), ALL_OF_THEM).failed

    @contextmanager
    def _repaired(self, fault: Fault) -> Iterator[None]:
        """The tree as it is without the fault, for a while."""
        kernels = self._tree.kernels
        with self._tree.planted(fault.path, fault.whole):
            self._tree.use_kernels(self._whole if fault.area == NATIVE else None)
            yield
        self._tree.use_kernels(kernels)
