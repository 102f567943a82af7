"""Spills: what is alive beyond the memory is moved to HBM, and comes back before it is used.

A tensor that came from HBM as it is is loaded again; anything else is saved first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from operator import add

from corepipe.nki.core.buffers import Space
from corepipe.nki.timing.blocks import Block, Program, place_of
from corepipe.nki.timing.liveness import alive, in_space, together
from corepipe.nki.timing.profile import LARGE_TENSORS

LARGE = 0.5
"""Share of SBUF from which a tensor is large.

Between 56 of 176 KiB, which AccelOpt's mamba keeps in part, and 128 KiB, which its lora and swiglu do not."""


@dataclass(slots=True, eq=False)
class Absence:
    """A time in which a block, or a share of the blocks that it stands for, is not in SBUF.

    left: position of the last use before; back: of the first one after it.  saved: HBM does not have it.
    """

    block: Block
    left: int
    back: int
    share: float
    saved: bool


@dataclass(slots=True, eq=False)
class Resident:
    """State of a block in the simulation of memory.

    uses: how many of its uses are over.  held: bytes that are in SBUF.  out: the share that is not.
    dirty: HBM does not hold what it holds.  absence: the one that goes on.
    """

    block: Block
    uses: int = 0
    count: int = 1
    held: float = 0.0
    dirty: bool = False
    absence: Absence | None = None

    @property
    def next(self) -> int:
        return self.block.touches[self.uses]


@dataclass(slots=True, eq=False)
class Spilling:
    """Goes through a program with a memory of `limit` bytes a partition.

    Where something must leave, it is the block whose next use is furthest.  Blocks in `cuts` leave at given
    uses, whatever is free.
    """

    program: Program
    limit: float
    cuts: dict[int, set[int]]
    """For each block, by id, the uses after which it leaves."""
    absences: list[Absence] = field(default_factory=list)
    live: float = 0.0
    _residents: dict[int, Resident] = field(default_factory=dict)
    _returns: dict[int, list[tuple[Resident, float]]] = field(default_factory=dict)
    _queue: list[tuple[int, int, Resident]] = field(default_factory=list)

    def run(self) -> list[Absence]:
        grows = self._growing()
        for at in range(len(self.program.stream)):
            for resident, count in grows.get(at, ()):
                self._grow(resident, count)
            for resident, more in self._returns.pop(at, ()):
                if resident.absence is None and resident.uses < len(resident.block.touches):
                    resident.held += more
                    self.live += more
            used = self.program.used.get(at)
            if used:
                self._use(at, {id(b): b for b, _ in used if self._counts(b)})
        return self.absences

    def _counts(self, block: Block) -> bool:
        return block.buffer.space is Space.SBUF and bool(block.touches)

    def _growing(self) -> dict[int, list[tuple[Resident, int]]]:
        """Returns where blocks begin to stand for more blocks."""
        found: dict[int, list[tuple[Resident, int]]] = {}
        for block in in_space(self.program, Space.SBUF):
            resident = self._residents[id(block)] = Resident(block)
            for at, count in block.multiples():
                found.setdefault(at, []).append((resident, count))
        return found

    def _grow(self, resident: Resident, count: int) -> None:
        if resident.held:
            more = resident.held * (count / resident.count - 1)
            resident.held += more
            self.live += more
        resident.count = count

    def _use(self, at: int, blocks: dict[int, Block]) -> None:
        used = [self._residents[key] for key in blocks]
        for resident in used:
            self._enter(resident, at)
        self._evict(at, blocks)
        for resident in used:
            self._leave(resident, at)

    def _enter(self, resident: Resident, at: int) -> None:
        """Brings a block in for its use at a position."""
        block = resident.block
        if resident.uses >= len(block.touches) or resident.next != at:
            return
        missing = 1.0
        if resident.absence is not None:
            resident.absence.back = at
            missing, resident.absence = resident.absence.share, None
        elif resident.uses:
            missing = 0.0
        if missing:
            self._hold(resident, at, missing * block.size)
        resident.dirty |= at in block.written and not self._from_hbm(block, at)
        resident.uses += 1
        if resident.uses < len(block.touches):
            heappush(self._queue, (-resident.next, id(resident), resident))

    def _hold(self, resident: Resident, at: int, size: float) -> None:
        """Takes memory for a block that comes.

        In the turn before a gap one comes of those that it stands for; the others have come where it ends.
        """
        count = resident.count if resident.uses else 1
        now = size * max(1.0, count / self.program.weights[at])
        resident.held += now
        self.live += now
        if count * size > now and (groups := self.program.groups[at]):
            self._returns.setdefault(groups[0].skip, []).append((resident, count * size - now))

    def _from_hbm(self, block: Block, at: int) -> bool:
        instruction = self.program.of(at)
        return instruction.op == "dma_copy" and instruction.reads[0].buffer.given

    def _leave(self, resident: Resident, at: int) -> None:
        """Frees a block after its last use, or where it is cut."""
        block = resident.block
        if resident.uses and block.touches[resident.uses - 1] == at:
            if resident.uses == len(block.touches):
                self.live -= resident.held
                resident.held = 0.0
            elif at in self.cuts.get(id(block), ()):
                self._out(resident, at, 1.0)

    def _evict(self, at: int, busy: dict[int, Block]) -> None:
        """Makes room: the block that is needed last leaves first."""
        kept = []
        while self.live > self.limit and self._queue:
            entry = heappop(self._queue)
            resident = entry[2]
            if (
                resident.uses >= len(resident.block.touches)
                or -entry[0] != resident.next
                or not resident.held
            ):
                continue
            if id(resident.block) in busy or resident.block.pinned:
                kept.append(entry)
                continue
            size = resident.block.size
            blocks = min(ceil((self.live - self.limit) / size), resident.held / size)
            self._out(resident, resident.block.touches[resident.uses - 1], blocks * size / resident.held)
            if resident.held:
                kept.append(entry)
        for entry in kept:
            heappush(self._queue, entry)

    def _out(self, resident: Resident, left: int, part: float) -> None:
        """Moves a part of what is held out of SBUF."""
        self.live -= resident.held * part
        resident.held *= 1 - part
        if resident.held < 1:
            self.live -= resident.held
            resident.held = 0.0
        if resident.absence is None:
            resident.absence = Absence(resident.block, left, -1, 0.0, resident.dirty)
            self.absences.append(resident.absence)
        resident.absence.share += (1 - resident.absence.share) * part
        resident.dirty = resident.dirty and part < 1


def absences(program: Program, limit: float, rules: frozenset[str]) -> list[Absence]:
    """Returns when which blocks are not in SBUF; none if all fits."""
    blocks = in_space(program, Space.SBUF)
    if max(alive(blocks, len(program.stream)), default=0.0) <= limit:
        return []
    cuts = _cuts(program, blocks, limit) if LARGE_TENSORS.name in rules else {}
    return [absence for absence in Spilling(program, limit, cuts).run() if absence.back >= 0]


def _cuts(program: Program, blocks: Sequence[Block], limit: float) -> dict[int, set[int]]:
    """Returns the uses after which blocks of large tensors leave that are gone through again and again.

    Where such a tensor does not fit beside smaller ones, it is not kept in part: AccelOpt's matmul loads all
    160 KiB of its right side in every turn, and lora saves all its sums.
    """
    tensors: dict[object, list[Block]] = {}
    for block in blocks:
        tensors.setdefault(place_of(block.buffer), []).append(block)
    length = len(program.stream)
    large = {key: alive(t, length) for key, t in tensors.items() if _most(t) > LARGE * limit}
    large = {key: over_time for key, over_time in large.items() if max(over_time) > LARGE * limit}
    small = alive((b for key, t in tensors.items() if key not in large for b in t), length)
    found: dict[int, set[int]] = {}
    for key, over_time in large.items():
        if max(map(add, over_time, small)) > limit and not any(block.pinned for block in tensors[key]):
            cuts = _sweeps(tensors[key], together(tensors[key]))
            if sum(map(len, cuts.values())) >= 2 * len(tensors[key]):
                found.update(cuts)
    return found


def _most(blocks: Sequence[Block]) -> float:
    """Returns at least the bytes of a tensor that are alive together."""
    return sum(block.size * max([1, *(count for _, count in block.multiples())]) for block in blocks)


def _sweeps(blocks: Sequence[Block], together: int) -> dict[int, set[int]]:
    """Returns the uses after which most of a tensor's other blocks are used before the same is again."""
    uses = sorted((at, n) for n, block in enumerate(blocks) for at in block.touches)
    seen: dict[int, tuple[int, int]] = {}
    found: dict[int, set[int]] = {id(block): set() for block in blocks}
    count, before = 0, -1
    for at, n in uses:
        if n != before:
            count, before = count + 1, n
        since, last = seen.get(n, (count, at))
        if count - since > together / 2:
            found[id(blocks[n])].add(last)
        seen[n] = count, at
    return found
