"""Dependences between the turns of a loop, found in the stream of a run."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from corepipe.nki.core.buffers import Box, Buffer, Region, Space
from corepipe.nki.core.errors import Site
from corepipe.nki.core.instructions import (
    Engine,
    Event,
    Instruction,
    Loop,
    LoopBegin,
    LoopEnd,
    LoopKind,
    Turn,
)
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.rules.breaking import found

ASSOCIATIVE = frozenset({"add", "multiply", "maximum", "minimum"})
"""Operations that turns of an affine loop may reduce by."""

MOST_BOXES = 1024
"""Parts of a tensor, of a loop, that are compared with one another."""


@dataclass(slots=True)
class Accesses:
    """The parts of a tensor that the turns of a loop touch, by the first turn that does so.

    written: without reading; `loaded`: by transfers alone.  added: by sums, whose order is free.  exposed:
    read before the same turn has written them.  own: written in the current turn, by the first two axes.
    """

    written: dict[Box, tuple[int, Site]] = field(default_factory=dict)
    added: dict[Box, tuple[int, Site]] = field(default_factory=dict)
    exposed: dict[Box, tuple[int, Site]] = field(default_factory=dict)
    own: dict[Box, set[Box]] = field(default_factory=dict)
    read: bool = False
    rewritten: Site | None = None
    loaded: bool = True


@dataclass(slots=True)
class Frame:
    """A loop that is being followed: the events at which it and its current turn begin."""

    loop: Loop
    begin: int
    turn: int = 0
    turn_begin: int = 0
    tensors: dict[Buffer, Accesses] = field(default_factory=dict)

    def accesses(self, buffer: Buffer) -> Accesses:
        if (found := self.tensors.get(buffer)) is None:
            found = self.tensors[buffer] = Accesses()
        return found


def find_dependences(recorder: Recorder) -> None:
    """Notes what keeps the turns of a loop from being what the loop promises of them, in the legacy dialect.

    A turn of an affine loop reads nothing that another turn wrote, and writes nothing that another wrote,
    but for sums.  A tensor that every turn of another loop fills anew belongs into the loop.
    """
    if recorder.legacy:
        _Follower(recorder).follow(recorder.stream)


class _Follower:
    """Follows the stream with one Frame for each loop around an instruction."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.frames: list[Frame] = []
        self.ended: list[tuple[int, int]] = []  # events of loops that have ended, without those within others
        instructions = [e for e in recorder.stream if isinstance(e, Instruction)]
        once = {getattr(made, "buffer", made) for made in recorder.constants.values()}
        self.changed = {r.buffer for e in instructions for r in e.writes if r.buffer not in once}
        self.last_read = {
            r.buffer: at
            for at, e in enumerate(recorder.stream)
            if isinstance(e, Instruction)
            for r in e.reads
        }

    def follow(self, stream: Sequence[Event]) -> None:
        for at, event in enumerate(stream):
            if isinstance(event, Instruction):
                self._instruction(event)
            elif isinstance(event, LoopBegin):
                self.frames.append(Frame(event.loop, at))
            elif isinstance(event, Turn):
                frame = self.frames[-1]
                frame.turn, frame.turn_begin = event.index, at
                for accesses in frame.tensors.values():
                    accesses.own.clear()
            elif isinstance(event, LoopEnd):
                frame = self.frames.pop()
                self._ended(frame, at)
                while self.ended and self.ended[-1][0] > frame.begin:
                    self.ended.pop()
                self.ended.append((frame.begin, at))

    def _instruction(self, event: Instruction) -> None:
        total = _sum_of(event)
        for region in event.reads:
            if region.buffer not in self.changed:
                continue
            self._scope(region.buffer, event.site)
            if region is not total and not region.gaps:
                self._read(region, event.site)
        adds = event.accumulates or total is not None
        for region in event.writes:
            if not region.gaps and region.buffer in self.changed:
                self._written(event, region, adds)

    def _scope(self, buffer: Buffer, site: Site) -> None:
        """Notes a tile that was made in a loop and is read after it, or in a later turn."""
        at = bisect(self.ended, (buffer.born, len(self.recorder.stream))) - 1
        if at >= 0 and self.ended[at][0] < buffer.born <= self.ended[at][1]:
            found(self.recorder, "scope", site, operand=_name(buffer))
            return
        if any(frame.begin < buffer.born < frame.turn_begin for frame in self.frames):
            found(self.recorder, "scope", site, operand=_name(buffer))

    def _read(self, region: Region, site: Site) -> None:
        buffer, box = region.buffer, region.box
        covered = False  # by the turn of a loop, and so by those of the loops around it
        for frame in reversed(self.frames):
            if buffer.born >= frame.turn_begin:
                return  # this turn's own, and that of all loops around
            if buffer.born > frame.begin:
                return
            accesses = frame.accesses(buffer)
            accesses.read = True
            covered = covered or _covered(box, accesses.own)
            if covered:
                continue
            accesses.exposed.setdefault(box, (frame.turn, site))
            for earlier in (accesses.written, accesses.added):
                if frame.loop.kind is LoopKind.AFFINE and earlier.get(box, (frame.turn,))[0] != frame.turn:
                    self._carried(frame, buffer, site)

    def _written(self, event: Instruction, region: Region, adds: bool) -> None:
        buffer, box, site = region.buffer, region.box, event.site
        transfer = event.engines[0] is Engine.DMA
        for frame in reversed(self.frames):
            if buffer.born > frame.begin:
                return
            accesses = frame.accesses(buffer)
            if adds:
                if not _covered(box, accesses.own):
                    accesses.added.setdefault(box, (frame.turn, site))
                continue
            accesses.loaded = accesses.loaded and transfer
            if accesses.written.setdefault(box, (frame.turn, site))[0] != frame.turn:
                accesses.rewritten = accesses.rewritten or site
            accesses.own.setdefault(box[:2], set()).add(box)

    def _ended(self, frame: Frame, at: int) -> None:
        affine = frame.loop.kind is LoopKind.AFFINE
        for buffer, accesses in frame.tensors.items():
            if affine:
                self._compare(frame, buffer, accesses)
            elif (
                accesses.rewritten
                and accesses.loaded
                and accesses.read
                and not (accesses.exposed or accesses.added)
                and buffer.space is not Space.HBM
                and buffer.address is None
                and self.last_read.get(buffer, 0) < at
            ):
                found(
                    self.recorder,
                    "outer_buffer",
                    buffer.site,
                    operand=_name(buffer),
                    loop=str(frame.loop.site),
                )

    def _compare(self, frame: Frame, buffer: Buffer, accesses: Accesses) -> None:
        """Compares the parts that turns of an affine loop touched."""
        changed = {**accesses.written, **accesses.added}
        if (at := _conflict(accesses.exposed, changed)) is not None:
            self._carried(frame, buffer, at)
        elif (at := accesses.rewritten or _conflict(accesses.written, accesses.written)) is not None:
            found(self.recorder, "overlapping_writes", at, operand=_name(buffer), loop=str(frame.loop.site))

    def _carried(self, frame: Frame, buffer: Buffer, site: Site) -> None:
        found(self.recorder, "carried_dependence", site, operand=_name(buffer), loop=str(frame.loop.site))


def _sum_of(event: Instruction) -> Region | None:
    """Returns the operand that an instruction reduces into (`x[...] += y`): the order of turns is free."""
    details = event.details
    last = details.get("op1") or details.get("op0") or details.get("op")
    if last not in ASSOCIATIVE or len(event.writes) != 1:
        return None
    if details.get("op1") and event.op == "tensor_scalar":
        return None  # (x op0 a) op1 b reduces only if both are one operation
    return next((r for r in event.reads if r == event.writes[0]), None)


def _covered(box: Box, own: dict[Box, set[Box]]) -> bool:
    """Tells whether parts that a turn wrote make up a box; they are taken as disjoint."""
    if not own or box in own.get(box[:2], ()):
        return bool(own)
    shared = sum(_shared(box, part) for lead, parts in own.items() if _shared(box, lead) for part in parts)
    return shared >= _shared(box, box)


def _shared(box: Box, other: Box) -> int:
    """Returns how many indices two boxes share, in as many axes as the other has."""
    found = 1
    for (a, b), (c, d) in zip(box, other, strict=False):
        low, high = (a if a > c else c), (b if b < d else d)
        if low >= high:
            return 0
        found *= high - low
    return found


def _conflict(first: dict[Box, tuple[int, Site]], second: dict[Box, tuple[int, Site]]) -> Site | None:
    """Returns the line of a part in `first` that overlaps a part in `second` of another turn."""
    if not first or not second or (first is second and len(first) == 1):
        return None
    a, b = list(first.items())[:MOST_BOXES], list(second.items())[:MOST_BOXES]
    one, two = np.array([box for box, _ in a])[:, None], np.array([box for box, _ in b])[None]
    shared = ((one[..., 0] < two[..., 1]) & (two[..., 0] < one[..., 1])).all(axis=-1)
    turns = np.array([t for _, (t, _) in a])[:, None] != np.array([t for _, (t, _) in b])[None]
    which = np.argwhere(shared & turns)
    return a[int(which[0][0])][1][1] if len(which) else None


def _name(buffer: Buffer) -> str:
    return buffer.name or f"the tensor of {buffer.site}"
