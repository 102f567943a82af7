"""The recorder of a run: the stream of its instructions, its buffers, loops and findings.

One run is current at a time in a context; the functions of both dialects find it by `current()`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from corepipe.nki.core.buffers import Buffer, Space
from corepipe.nki.core.errors import KernelError, Site
from corepipe.nki.core.instructions import (
    Engine,
    Event,
    Instruction,
    Loop,
    LoopBegin,
    LoopEnd,
    LoopKind,
    Skip,
    Turn,
)
from corepipe.nki.core.tensors import View

PACKAGE = str(Path(__file__).parents[1])

WARM_TURNS = 4
"""Turns of a long loop that the stream holds before it skips: filling the buffers takes the first ones."""

LONG_LOOP = 16
"""Turns from which a loop is extrapolated."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that does not stop the kernel, by rule and line."""

    rule: str
    message: str
    site: Site


@dataclass(slots=True)
class Recorder:
    """The record of a run.

    generation: `v2`, `v3` or `v4` (NeuronCore's).  legacy: the dialect.  values: whether values are computed.
    whole: records every turn of every loop.  muted: turns that are not recorded are being run (their values
    are computed, their instructions are not kept).
    """

    generation: str
    legacy: bool
    values: bool = True
    whole: bool = False
    grid: tuple[int, ...] = ()
    program: tuple[int, ...] = ()
    stream: list[Event] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    findings: dict[tuple[str, Site], Finding] = field(default_factory=dict)
    loops: list[Loop] = field(default_factory=list)
    """Loops that are being run, the outermost first."""
    before_loops: WeakValueDictionary[int, Any] = field(default_factory=WeakValueDictionary)
    """Tiles that are not made yet; `settle` makes those that the next loop may read."""
    exact: set[Site] = field(default_factory=set)
    """Loops that are not extrapolated, since an earlier run found that their turns differ."""
    differing: set[Site] = field(default_factory=set)
    """Loops of this run that were extrapolated though their turns differ."""
    muted: int = 0
    registers: dict[Engine, np.ndarray[Any, Any]] = field(default_factory=dict)
    """Sums of ScalarE and VectorE, a value for each partition, which instructions reset, add to and read."""
    constants: dict[Any, Any] = field(default_factory=dict)
    """Tensors that a dialect makes once a run: tiles of ones, and those that all programs share."""
    pending: Callable[[], object] | None = None
    """Records the instruction whose result the kernel has not placed yet; see `flush`."""
    at: Site | None = None
    """The line that instructions are recorded for, where it is not the innermost one of the kernel."""
    _loops_begun: int = 0
    _turn: int = 0
    """A hash of the instructions of the turn that is being run."""

    def emit(
        self,
        op: str,
        engines: Sequence[Engine],
        writes: Sequence[View],
        reads: Sequence[View],
        *,
        accumulates: bool = False,
        size: View | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> Instruction:
        """Records an instruction of the kernel's current line and returns it.

        size: the operand whose partitions and free elements set its time; by default the largest on chip.
        """
        if size is None:
            on_chip = [v for v in (*writes, *reads) if v.space is not Space.HBM] or [*writes, *reads]
            size = max(on_chip, key=lambda v: (v.free, v.partitions))
        instruction = Instruction(
            op,
            tuple(engines),
            size.partitions,
            size.free,
            tuple(v.region() for v in reads),
            tuple(v.region() for v in writes),
            self.site(),
            accumulates,
            details or {},
        )
        if not self.muted:
            self.stream.append(instruction)
        if self.loops:
            numbers = tuple(tuple(v) if isinstance(v, list) else v for v in (details or {}).values())
            self._turn = hash((self._turn, op, instruction.partitions, instruction.free, numbers))
        return instruction

    def flush(self) -> None:
        """Records the instruction that is pending.

        A result of the legacy dialect waits for an assignment that says where it belongs; anything else that
        is recorded, and the end of a turn, comes after it.
        """
        if self.pending is not None:
            record, self.pending = self.pending, None
            record()

    def allocate(
        self,
        space: Space,
        shape: Sequence[int],
        dtype: Any,
        *,
        name: str = "",
        blocks: int = 0,
        filled: bool = True,
    ) -> Buffer:
        """Returns a new buffer; fresh memory holds NaN, or 4 in integers, as in AWS's simulator.

        filled: False where the next instruction writes all of it.
        """
        whole = tuple(int(n) for n in shape)
        kind = np.dtype(dtype)
        buffer = Buffer(name, space, whole, kind, self.site(), blocks, born=len(self.stream))
        if self.values:
            count = prod(whole)
            buffer.data = np.empty(count, kind)
            if filled:
                buffer.data.fill(fresh_value(kind))
                buffer.written = np.zeros(count, np.bool_)
        if not self.muted:
            self.buffers.append(buffer)
        return buffer

    def give(self, name: str, value: np.ndarray[Any, Any]) -> Buffer:
        """Returns an HBM buffer that holds an input or a constant."""
        buffer = Buffer(name, Space.HBM, value.shape, value.dtype, self.site(), given=True)
        if self.values:
            buffer.data = np.ascontiguousarray(value).reshape(-1).copy()
        self.buffers.append(buffer)
        return buffer

    def find(self, rule: str, message: str, site: Site | None = None) -> None:
        """Notes a finding of a line, by default the current one, once a rule and line."""
        site = site or self.site()
        self.findings.setdefault((rule, site), Finding(rule, message, site))

    def refuse(self, rule: str, message: str) -> KernelError:
        """Returns the error of a broken rule at the current line, to be raised."""
        return KernelError(message, self.site(), rule)

    def site(self) -> Site:
        """Returns the innermost line outside this package, or `at`."""
        if self.at is not None:
            return self.at
        return outside()

    def loop(self, kind: LoopKind, indices: range) -> Iterator[int]:
        """Yields a loop's indices and records its turns.

        Of a long loop the stream holds the first `WARM_TURNS` turns and the last.  Of the others only the
        middle one is run where no values are computed.  A loop whose turns differ is noted in `differing`.
        """
        self.flush()
        for tile in list(self.before_loops.values()):
            tile.settle()
        self.before_loops.clear()
        self._loops_begun += 1
        loop = Loop(self._loops_begun, kind, len(indices), self.site())
        self.loops.append(loop)
        muted = self.muted
        if not muted:
            self.stream.append(LoopBegin(loop))
        try:
            if self.whole or len(indices) < LONG_LOOP or loop.site in self.exact:
                self._turn = hash((self._turn, len(indices)))
                for turn, index in enumerate(indices):
                    self._mark(Turn(loop, turn))
                    yield index
                    self.flush()
            else:
                yield from self._sampled(loop, indices)
        finally:
            self.muted = muted
            self._mark(LoopEnd(loop))
            self.loops.remove(loop)

    def _mark(self, event: Event) -> None:
        if not self.muted:
            self.stream.append(event)

    def _sampled(self, loop: Loop, indices: range) -> Iterator[int]:
        """Yields the indices of a long loop, and compares its turns."""
        before, last = self._turn, len(indices) - 1
        found = []
        for turn in (*range(WARM_TURNS), *self._unrecorded(last), last):
            recorded = turn < WARM_TURNS or turn == last
            if turn == last:
                loop.skipped = last - WARM_TURNS
                self._mark(Skip(loop, loop.skipped))
            if recorded:
                self._mark(Turn(loop, turn))
            self.muted += not recorded
            self._turn = 0
            yield indices[turn]
            self.flush()
            self.muted -= not recorded
            found.append(self._turn)
        if len(set(found[1:-1])) > 1:  # the first turn may prepare, and the last be a part
            self.differing.add(loop.site)
        self._turn = hash((before, last, *found[:WARM_TURNS], found[-1]))

    def _unrecorded(self, last: int) -> Iterable[int]:
        """Returns the turns that are run but not recorded, of a long loop whose last turn is `last`."""
        return range(WARM_TURNS, last) if self.values else ((WARM_TURNS + last) // 2,)


def outside() -> Site:
    """Returns the innermost line outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno)


def fresh_value(dtype: np.dtype[Any]) -> Any:
    """Returns the value of memory that nothing has written."""
    return 4 if dtype.kind in "iub" else np.nan


_CURRENT: ContextVar[Recorder | None] = ContextVar("nki_recorder", default=None)


def current() -> Recorder:
    """Returns the recorder of the kernel that is being run.  Raises KernelError outside of a run."""
    recorder = _CURRENT.get()
    if recorder is None:
        raise KernelError("this function is called outside of a kernel; run it by corepipe.nki.simulate")
    return recorder


def running() -> bool:
    """Tells whether a kernel is being run."""
    return _CURRENT.get() is not None


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Makes a recorder the current one within the block, where arithmetic raises no signals, as on the
    engines."""
    token = _CURRENT.set(recorder)
    try:
        with np.errstate(all="ignore"):
            yield recorder
    finally:
        _CURRENT.reset(token)
