"""Blocks of a kernel's tensors on chip: where in its stream each is used, and how many alike it stands for.

The stream of a long loop leaves turns out.  What happens in its last turn before the gap stands for these as
well: instructions count as often as their `weights` say, and a block that was written in that turn and is
needed after the loop counts as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import product
from math import prod

from corepipe.nki.core.buffers import Buffer, Region, Space
from corepipe.nki.core.instructions import Event, Instruction, Loop, LoopBegin, LoopEnd, Skip, Turn

Place = object
"""Shared by all buffers that one line of a kernel allocates, turn after turn."""

HBM = Space.HBM

MANY = 64
"""Blocks that an operand can name one by one; of a larger one only blocks that exist are looked at."""


def place_of(buffer: Buffer) -> Place:
    """Returns the place of a buffer."""
    root = buffer.root
    return root.site, root.space, root.shape, root.name


@dataclass(slots=True, eq=False)
class Frame:
    """One execution of a loop, as positions in the stream: its begin, its end, and where turns are left out.

    turns: where each recorded turn begins.  outer: the loop around it.  around: turns that the current ones
    of all loops around it stand for.  factor: those that its own current turn stands for.
    """

    loop: Loop
    begin: int
    outer: Frame | None
    key: tuple[object, ...]
    turns: list[int] = field(default_factory=list)
    skip: int = -1
    end: int = -1
    turn: int = 0
    around: int = 1
    factor: int = 1

    @property
    def gap(self) -> int:
        """Turns that the one before the gap stands for."""
        return self.loop.skipped + 1

    @property
    def times(self) -> int:
        """Turns that the current one stands for, in all loops."""
        return self.factor * self.around


@dataclass(slots=True, eq=False)
class Block:
    """A block of a tensor: a position of the block axes.

    touches: positions of the instructions that use it, in order; written: those of them that write it.
    groups: the loops in whose turn before the gap it was first used, the innermost first.
    pinned: it stays where it is.  unread: only turns that are left out read it.
    size: bytes a partition, as if blocks of few partitions lay side by side.
    """

    buffer: Buffer
    index: tuple[int, ...]
    size: float
    touches: list[int] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    groups: tuple[Frame, ...] = ()
    pinned: bool = False
    unread: bool = False

    @property
    def born(self) -> int:
        return self.touches[0]

    @property
    def dies(self) -> int:
        return self.touches[-1]

    def settle(self, gone: Set[int]) -> None:
        """Puts its uses in order after blocks were joined, without those that are gone."""
        self.touches = sorted(set(self.touches) - gone)
        self.written -= gone

    def multiples(self) -> Iterator[tuple[int, int]]:
        """Yields from where on it stands for how many blocks, besides its birth as one."""
        count = 1
        for frame in self.groups:
            if self.dies > frame.end:
                count *= frame.gap
                yield frame.skip, count


@dataclass(slots=True, eq=False)
class Filling:
    """A load: its position, and the block that it fills."""

    at: int
    block: Block


@dataclass(slots=True, eq=False)
class Program:
    """A stream with its blocks and loops.

    weights: for each position how often its instruction is executed.  groups: the loops in whose turn before
    the gap it is.  around: for each transfer the loop around it.  used: for each instruction the blocks that
    it uses, with the operand.
    """

    stream: Sequence[Event]
    weights: list[int]
    groups: list[tuple[Frame, ...]]
    blocks: list[Block] = field(default_factory=list)
    around: dict[int, Frame | None] = field(default_factory=dict)
    used: dict[int, list[tuple[Block, Region]]] = field(default_factory=dict)

    def join(self, kept: Block, block: Block) -> None:
        """Makes one block of two that hold the same; `kept` is to be settled."""
        for at in block.touches:
            self.used[at] = [(kept if b is block else b, region) for b, region in self.used[at]]
        kept.touches += block.touches
        block.touches = []

    def of(self, at: int) -> Instruction:
        """Returns the instruction at a position."""
        event = self.stream[at]
        assert isinstance(event, Instruction)
        return event


class Scan:
    """One pass over a stream."""

    def __init__(self, stream: Sequence[Event]) -> None:
        self.program = Program(stream, [1] * len(stream), [()] * len(stream))
        self._blocks: dict[int, dict[tuple[int, ...], Block]] = {}
        self._frame: Frame | None = None
        self._weight = 1
        self._groups: tuple[Frame, ...] = ()

    def run(self) -> Program:
        for at, event in enumerate(self.program.stream):
            if isinstance(event, Instruction):
                self._instruction(at, event)
            else:
                self._loop_event(at, event)
        self.program.blocks = [block for block in self.program.blocks if block.touches]
        for blocks in self._blocks.values():
            self._keep_unread([block for _, block in sorted(blocks.items()) if block.touches])
        return self.program

    def _keep_unread(self, blocks: list[Block]) -> None:
        """Lets blocks of a tensor that only turns left out can read live until the next one is read last."""
        keeper: Block | None = None
        for block in reversed(blocks):
            if any(at not in block.written for at in block.touches):
                keeper = block
            elif keeper is not None and block.dies < keeper.dies:
                region = next(r for b, r in self.program.used[keeper.dies] if b is keeper)
                self.program.used[keeper.dies].append((block, region))
                block.touches.append(keeper.dies)
                block.unread = True

    def _loop_event(self, at: int, event: Event) -> None:
        frame = self._frame
        if isinstance(event, LoopBegin):
            key = (*(frame.key if frame else ()), event.loop.site)
            self._frame = Frame(event.loop, at, frame, key, around=frame.times if frame else 1)
        elif frame is not None:
            if isinstance(event, Turn):
                frame.turns.append(at)
                frame.turn = event.index
                frame.factor = 1
            elif isinstance(event, Skip):
                frame.skip = at
            elif isinstance(event, LoopEnd):
                frame.end = at
                self._frame = frame.outer
        self._count(event)

    def _count(self, event: Event) -> None:
        """Sets the factor of a turn that stands for those left out: the one before the gap."""
        frame = self._frame
        if isinstance(event, Turn) and frame is not None and event.loop.skipped:
            last = event.loop.count - 1
            frame.factor = frame.gap if event.index == last - event.loop.skipped - 1 else 1
        self._weight = frame.times if frame else 1
        self._groups = tuple(self._gaps()) if self._weight > 1 else ()

    def _instruction(self, at: int, instruction: Instruction) -> None:
        if self._weight > 1:
            self.program.weights[at] = self._weight
            self.program.groups[at] = self._groups
        read = [(b, r) for r in instruction.reads if r.buffer.space is not HBM for b in self._touched(r)]
        written = [
            (b, r)
            for r in instruction.writes
            if r.buffer.space is not HBM
            for b in self._touched(r, new=True)
        ]
        for block, _ in written:
            block.written.add(at)
        used = read + written
        filled = instruction.op == "memset"
        for block, _ in used:
            if touches := block.touches:
                if touches[-1] != at:
                    touches.append(at)
            elif not filled:
                block.groups = self._groups
                touches.append(at)
        self.program.used[at] = used
        if instruction.op == "dma_copy":
            self.program.around[at] = self._frame

    def _gaps(self) -> Iterator[Frame]:
        frame = self._frame
        while frame is not None:
            if frame.factor > 1:
                yield frame
            frame = frame.outer

    def _touched(self, region: Region, *, new: bool = False) -> list[Block]:
        """Returns the blocks of a region.  A block is filled where it is first needed, wherever the kernel
        fills it, and it is new where it is first written."""
        buffer = region.buffer
        blocks = self._blocks.get(id(buffer))
        if blocks is None:
            blocks = self._blocks[id(buffer)] = {}
        box = region.box[: buffer.blocks]
        key = tuple([low for low, _ in box])
        if (block := blocks.get(key)) is not None and all(high - low == 1 for low, high in box):
            return [block]
        count = prod(high - low for low, high in box)
        if count == 1:
            return self._one(buffer, blocks, key, new)
        if count > MANY:
            return [b for key, b in blocks.items() if _inside(key, box)]
        keys = product(*(range(low, high) for low, high in box))
        return [block for key in keys for block in self._one(buffer, blocks, key, new)]

    def _one(
        self, buffer: Buffer, blocks: dict[tuple[int, ...], Block], key: tuple[int, ...], new: bool
    ) -> list[Block]:
        block = blocks.get(key)
        if block is None:
            if not new:
                return []
            partitions = buffer.shape[buffer.blocks] if len(buffer.shape) > buffer.blocks else 1
            block = blocks[key] = Block(buffer, key, buffer.partition_bytes * min(partitions, 128) / 128)
            self.program.blocks.append(block)
        return [block]


def _inside(key: tuple[int, ...], box: Sequence[tuple[int, int]]) -> bool:
    return all(low <= i < high for i, (low, high) in zip(key, box, strict=True))


def scanned(stream: Sequence[Event]) -> Program:
    """Returns the blocks and loops of a stream."""
    return Scan(stream).run()
