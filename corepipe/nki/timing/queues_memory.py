"""The memory of a simulation of queues: when each region was written and read last.

Regions are found by their buffer and the indices of its block axes, and there by box, so that an operand
costs one look-up in most cases.  All times are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from corepipe.nki.core.buffers import Box, Buffer, Region, Space
from corepipe.nki.core.instructions import Engine, Instruction
from corepipe.nki.timing.compiled import Place, place_of
from corepipe.nki.timing.queues_room import Room

MANY_PARTS = 48
"""Parts of a block that are kept apart; with more the block counts as one."""

MANY_BLOCKS = 64
"""Blocks that one operand may touch one by one."""


@dataclass(slots=True, eq=False)
class Part:
    """A part of a block and its last uses.

    written: when any engine can read it.  free: when the writer's own engine can.  writer: that engine.
    read,
    reader: when its last reader is done, and that engine.
    """

    box: Box
    written: float = 0.0
    free: float = 0.0
    writer: Engine | None = None
    read: float = 0.0
    reader: Engine | None = None

    def shift(self, passed: Mapping[Engine, float]) -> None:
        """Moves its times by what passed on the engines that used it last."""
        if self.writer is not None:
            self.written += passed[self.writer]
            self.free += passed[self.writer]
        if self.reader is not None:
            self.read += passed[self.reader]


@dataclass(slots=True, eq=False)
class Block:
    """A block of a buffer: its parts, by box.

    disjoint: no two of them overlap.  held: it has been written and takes memory.  last, user: the end of its
    last use, and the engine that used it.  followers: blocks that stand for those of the turns after it,
    which were left out.
    """

    parts: dict[Box, Part] = field(default_factory=dict)
    disjoint: bool = True
    held: bool = False
    last: float = 0.0
    user: Engine | None = None
    followers: list[Block] = field(default_factory=list)

    def follow(self, passed: Mapping[Engine, float]) -> None:
        """Spreads the uses of the blocks that follow over the turns that were left out."""
        for i, block in enumerate(self.followers, 1):
            if self.user is not None:
                block.used(self.last + passed[self.user] * i / len(self.followers), self.user)

    def used(self, until: float, engine: Engine) -> None:
        """Notes a use."""
        if until > self.last:
            self.last, self.user = until, engine

    def overlapping(self, box: Box) -> list[Part]:
        """Returns the parts that share elements with a box."""
        part = self.parts.get(box)
        if part is not None and self.disjoint:
            return [part]
        return [p for p in self.parts.values() if _overlap(p.box, box)]

    def read(self, box: Box, otherwise: Part) -> list[Part]:
        """Returns the parts that hold a box, and `otherwise` for what nobody has written yet."""
        parts = self.overlapping(box)
        if not self._covered(box, parts):
            self.disjoint &= not parts
            self.parts[box] = otherwise
            parts.append(otherwise)
            if len(self.parts) > MANY_PARTS:
                return [self._merge()]
        return parts

    def _covered(self, box: Box, parts: list[Part]) -> bool:
        if any(_contains(p.box, box) for p in parts):
            return True
        return self.disjoint and sum(_shared(p.box, box) for p in parts) == _shared(box, box)

    def write(self, box: Box) -> Part:
        """Returns the part of a box that is being written; parts that it covers are gone."""
        part = self.parts.get(box)
        if part is not None and self.disjoint:
            return part
        met = [p for p in self.parts.values() if _overlap(p.box, box)]
        for p in met:
            if _contains(box, p.box):
                del self.parts[p.box]
            else:
                self.disjoint = False
        part = self.parts[box] = Part(box)
        if len(self.parts) > MANY_PARTS:
            return self._merge()
        return part

    def _merge(self) -> Part:
        """Makes one part of all and returns it."""
        parts = list(self.parts.values())
        axes = zip(*(p.box for p in parts), strict=True)
        box = tuple((min(a for a, _ in axis), max(b for _, b in axis)) for axis in axes)
        late = max(parts, key=lambda p: p.written)
        read = max(parts, key=lambda p: p.read)
        one = Part(box, late.written, late.free, late.writer, read.read, read.reader)
        self.parts, self.disjoint = {box: one}, True
        return one


def _overlap(one: Box, other: Box) -> bool:
    return all(a < d and c < b for (a, b), (c, d) in zip(one, other, strict=True))


def _contains(outer: Box, inner: Box) -> bool:
    return all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner, strict=True))


def _shared(one: Box, other: Box) -> int:
    """Returns how many elements two boxes share that do share some."""
    return prod(min(b, d) - max(a, c) for (a, b), (c, d) in zip(one, other, strict=True))


@dataclass(slots=True, eq=False)
class Tracked:
    """A buffer: its blocks by their indices, and when and by which engine it was written last.

    rotation: the blocks that hold its memory in turn, shared by buffers that are allocated at one place.
    unseen: stands for the blocks of turns that were left out.  hidden: their number, where they stay.
    """

    buffer: Buffer
    rotation: Rotation | None
    blocks: dict[tuple[int, ...], Block] = field(default_factory=dict)
    unseen: Block = field(default_factory=Block)
    hidden: int = 0
    written: float = 0.0
    writer: Engine | None = None

    def split(self, region: Region) -> tuple[list[tuple[int, ...]], Box]:
        """Returns the blocks that a region touches and its box in each."""
        count, box = self.buffer.blocks, region.box
        if not count:
            return [()], box
        if all(b - a == 1 for a, b in box[:count]):
            return [tuple([a for a, _ in box[:count]])], box[count:]
        indices: list[tuple[int, ...]] = [()]
        for low, high in box[:count]:
            if len(indices) * (high - low) > MANY_BLOCKS:
                return [key for key in self.blocks if _inside(key, box)], box[count:]
            indices = [(*key, i) for key in indices for i in range(low, high)]
        return indices, box[count:]


def _inside(key: tuple[int, ...], box: Box) -> bool:
    return all(low <= i < high for i, (low, high) in zip(key, box, strict=False))


@dataclass(slots=True, eq=False)
class Rotation:
    """Memory for `copies` blocks, used in turn: a new block waits until the one before it is done with.

    owner, newest: the newest block and its buffer.  taken: blocks so far.  kept: those that occupy shared
    memory now.
    """

    copies: int
    held: dict[int, Block] = field(default_factory=dict)
    owner: Tracked | None = None
    newest: Block | None = None
    taken: int = 0
    kept: int = 0

    def take(self, tracked: Tracked, block: Block) -> float:
        """Gives a block its memory and returns when that is free."""
        self.owner, self.newest = tracked, block
        before = self.held.get(self.taken % self.copies)
        self.held[self.taken % self.copies] = block
        self.taken += 1
        return before.last if before is not None else 0.0

    def repeat(self, count: int, passed: Mapping[Engine, float]) -> None:
        """Takes memory for so many blocks of turns that were left out, which follow the newest one."""
        newest = self.newest
        if newest is None or not count:
            return
        newest.followers = [Block() for _ in range(count)]
        newest.follow(passed)
        for i in range(max(0, count - self.copies), count):
            self.held[(self.taken + i) % self.copies] = newest.followers[i]
        self.taken += count


@dataclass(slots=True, eq=False)
class Uses:
    """Times from which an instruction may start, by its operands.

    near: by the engine that wrote an operand, when that engine itself can read it.  far: when others can.
    buffer: when what the instruction overwrites is no longer needed.  reads, writes: parts and blocks to
    mark.
    """

    near: dict[Engine, float] = field(default_factory=dict)
    far: dict[Engine, float] = field(default_factory=dict)
    buffer: float = 0.0
    reads: list[tuple[Tracked, Block, Part]] = field(default_factory=list)
    writes: list[tuple[Tracked, Block, Part]] = field(default_factory=list)

    def needs(self, part: Part) -> None:
        """Notes that a part must be written before."""
        if (writer := part.writer) is not None:
            if part.free > self.near.get(writer, 0.0):
                self.near[writer] = part.free
            if part.written > self.far.get(writer, 0.0):
                self.far[writer] = part.written

    def ready(self, engine: Engine) -> tuple[float, str]:
        """Returns when an engine may start, and what it waits for: an engine or `buffer`."""
        at, cause = self.buffer, "buffer"
        for writer, far in self.far.items():
            time = self.near[writer] if writer is engine else far
            if time > at:
                at, cause = time, str(writer)
        return at, cause

    def done(self, engine: Engine, free: float, end: float) -> None:
        """Marks the operands as used by an instruction that leaves its engine at `free`."""
        for tracked, block, part in self.reads:
            if free > part.read:
                part.read, part.reader = free, engine
            block.used(free, engine)
            tracked.unseen.used(free, engine)
        for tracked, block, part in self.writes:
            part.written, part.free, part.writer = end, free, engine
            block.used(end, engine)
            tracked.unseen.used(end, engine)
            if end > tracked.written:
                tracked.written, tracked.writer = end, engine


class Buffers:
    """All buffers of a kernel.

    copies: the number of blocks that exist at a time, by the place where their buffers are allocated; where
    it says nothing, no block waits for another.  read: buffers in HBM that the kernel reads; only these are
    followed.  room: SBUF, where tensors share it.
    """

    def __init__(
        self, copies: Mapping[Place, int], read: Iterable[Buffer] = (), room: Room | None = None
    ) -> None:
        self._copies, self._room = copies, room
        self._followed = {id(b) for b in read if not b.given}
        self._tracked: dict[int, Tracked | None] = {}
        self.rotations: dict[Place, Rotation] = {}

    def tracked(self, buffer: Buffer) -> Tracked | None:
        """Returns the record of a buffer, or None where no dependence can come from it."""
        key = id(buffer)
        if key not in self._tracked:
            self._tracked[key] = self._new(buffer)
        return self._tracked[key]

    def _new(self, buffer: Buffer) -> Tracked | None:
        if buffer.space is Space.HBM and id(buffer) not in self._followed:
            return None
        place = place_of(buffer)
        copies = self._copies.get(place, 0)
        rotation = self.rotations.setdefault(place, Rotation(copies)) if copies else None
        return Tracked(buffer, rotation)

    def uses(self, instruction: Instruction) -> Uses:
        """Looks up the operands of an instruction."""
        uses = Uses()
        for region in instruction.reads:
            if (tracked := self.tracked(region.buffer)) is not None:
                self._read(tracked, region, uses)
        for region in instruction.writes:
            if (tracked := self.tracked(region.buffer)) is not None:
                self._write(tracked, region, instruction, uses)
        return uses

    def _read(self, tracked: Tracked, region: Region, uses: Uses) -> None:
        """Looks up an operand; what nobody wrote, a turn that was left out did."""
        keys, box = tracked.split(region)
        for key in keys:
            block = tracked.blocks.get(key)
            if block is None:
                block = tracked.blocks[key] = Block()
            unseen = Part(box, tracked.written, tracked.written, tracked.writer)
            for part in block.read(box, unseen):
                uses.needs(part)
                uses.reads.append((tracked, block, part))

    def _write(self, tracked: Tracked, region: Region, instruction: Instruction, uses: Uses) -> None:
        keys, box = tracked.split(region)
        for key in keys:
            block = tracked.blocks.get(key)
            if block is None:
                block = tracked.blocks[key] = Block()
            if not block.held:
                block.held = True
                uses.buffer = max(uses.buffer, self._take(tracked, block))
            for part in block.overlapping(box):
                uses.buffer = max(uses.buffer, part.read)
                if not (instruction.accumulates and part.writer is Engine.TENSOR):  # PSUM adds in order
                    uses.needs(part)
            uses.writes.append((tracked, block, block.write(box)))

    def _take(self, tracked: Tracked, block: Block) -> float:
        """Gives a block its memory and returns when that is free."""
        free, buffer, rotation = 0.0, tracked.buffer, tracked.rotation
        if rotation is not None:
            free = rotation.take(tracked, block)
            if self._room is not None and buffer.space is Space.SBUF:
                rotation.kept += 1
                free = max(free, self._room.take(buffer.partition_bytes))
        return free

    def leave(self, buffer: Buffer, key: tuple[int, ...] | None) -> None:
        """Takes back the memory of a block that nobody uses any more; None: of all that were left out."""
        tracked = self.tracked(buffer)
        if self._room is None or tracked is None or tracked.rotation is None:
            return
        size = float(buffer.partition_bytes)
        if key is None:
            tracked.rotation.kept -= tracked.hidden
            self._room.leave(size * tracked.hidden, tracked.unseen.last, tracked.unseen.user)
            tracked.hidden = 0
        elif (block := tracked.blocks.get(key)) is not None and block.held:
            block.held = False
            tracked.rotation.kept -= 1
            self._room.leave(size, block.last, block.user)

    def state(self) -> dict[Rotation, tuple[int, int]]:
        """Returns for each rotation the blocks that it took so far, and those that occupy shared memory."""
        return {r: (r.taken, r.kept) for r in self.rotations.values()}

    def repeat(
        self,
        before: Mapping[Rotation, tuple[int, int]],
        times: float,
        passed: Mapping[Engine, float],
        since: float,
    ) -> None:
        """Takes memory as often as since `before`, so many times, for blocks of turns that were left out."""
        for rotation in self.rotations.values():
            taken, kept = before.get(rotation, (0, 0))
            if self._room is not None and rotation.owner is not None:
                self._keep(rotation, rotation.owner, round(times * (rotation.kept - kept)), passed)
            rotation.repeat(round(times * (rotation.taken - taken)), passed)
        if self._room is not None:
            self._room.repeat(since, passed)

    def _keep(self, rotation: Rotation, owner: Tracked, more: int, passed: Mapping[Engine, float]) -> None:
        """Notes blocks that turns which were left out keep (`more` > 0), or were the last to use."""
        assert self._room is not None
        size, unseen = float(owner.buffer.partition_bytes), owner.unseen
        more = max(more, -owner.hidden)
        owner.hidden += more
        rotation.kept += more
        if more > 0:
            self._room.take(more * size)
        elif unseen.user is not None:
            for i in range(-more):
                at = unseen.last + passed[unseen.user] * (i + 1) / -more
                self._room.leave(size, at, unseen.user)
