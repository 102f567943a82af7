"""Loops of as many turns that load the same are fused: each turn does what the turns of both did.

A turn of the second loop may need what the same turn of the first one made, and nothing of others.  What lies
between the loops moves before both, or the second one moves up to the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from corepipe.nki.core.buffers import Region, Space
from corepipe.nki.core.instructions import Event, Instruction, Loop, LoopBegin, LoopEnd, LoopKind, Skip, Turn

SHARED = 0.5
"""Share of the bytes that the second loop loads which the first one must load too."""

Block = tuple[int, tuple[int, ...]]
"""A tensor, by the id of its buffer, and the position of a block."""


@dataclass(slots=True, eq=False)
class Node:
    """One execution of a loop: its recorded turns, and the mark before the last one where turns are left out.

    inputs: ids of the inputs that it loads from.  fused: its turns are those of several loops.
    """

    loop: Loop
    turns: list[list[Item]] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    skip: Skip | None = None
    inputs: set[int] = field(default_factory=set)
    fused: bool = False


Item = Instruction | Node


@dataclass(slots=True, eq=False)
class Effects:
    """Blocks that instructions read and write, and the parts of inputs that they load, with their bytes."""

    reads: set[Block] = field(default_factory=set)
    writes: set[Block] = field(default_factory=set)
    loads: dict[object, float] = field(default_factory=dict)

    @classmethod
    def of(cls, items: Iterable[Item]) -> Effects:
        found = cls()
        for instruction in _instructions(items):
            found.reads.update(_block(r) for r in instruction.reads if not r.buffer.given)
            found.writes.update(_block(r) for r in instruction.writes)
            if (part := _loaded(instruction)) is not None:
                found.loads[part] = float(instruction.details["bytes"])
        return found

    def independent(self, other: Effects) -> bool:
        """Tells whether the two may change places."""
        return self.writes.isdisjoint(other.reads | other.writes) and self.reads.isdisjoint(other.writes)


def _block(region: Region) -> Block:
    """Returns the block of a region; a tensor in HBM counts as one."""
    count = 0 if region.buffer.space is Space.HBM else region.buffer.blocks
    return id(region.buffer), tuple(low for low, _ in region.box[:count])


def _loaded(instruction: Instruction) -> tuple[int, object] | None:
    """Returns the part of an input that an instruction loads."""
    if instruction.op != "dma_copy" or not instruction.reads[0].buffer.given:
        return None
    return id(instruction.reads[0].buffer), instruction.reads[0].box


def _instructions(items: Iterable[Item]) -> Iterator[Instruction]:
    for item in items:
        if isinstance(item, Instruction):
            yield item
        else:
            for turn in item.turns:
                yield from _instructions(turn)


@dataclass(slots=True, eq=False)
class Fusion:
    """Fuses the loops of a stream.  same: pairs of loads that bring the same in one turn of fused loops."""

    same: list[tuple[Instruction, Instruction]] = field(default_factory=list)
    found: bool = False

    def run(self, stream: Sequence[Event]) -> Sequence[Event]:
        """Returns the stream with loops fused."""
        items = self._fuse(_tree(stream), fused=False)
        return list(_flat(items)) if self.found else stream

    def _fuse(self, items: list[Item], *, fused: bool) -> list[Item]:
        done: list[Item] = []
        for item in items:
            if not (isinstance(item, Node) and item.inputs and self._placed(done, item)):
                done.append(item)
        if fused:
            self._note(done)
        for item in done:
            if isinstance(item, Node) and len(item.inputs):
                item.turns = [self._fuse(turn, fused=item.fused) for turn in item.turns]
        return done

    def _placed(self, done: list[Item], second: Node) -> bool:
        """Fuses a loop with an earlier one, if there is one that allows it."""
        for at in reversed(range(len(done))):
            first, between = done[at], done[at + 1 :]
            if isinstance(first, Node) and _alike(first, second):
                one, other, rest = (Effects.of(items) for items in ([first], [second], between))
                if not (rest.independent(one) or rest.independent(other)) or not _fusible(first, second):
                    continue
                first.turns = [[*a, *b] for a, b in zip(first.turns, second.turns, strict=True)]
                first.inputs |= second.inputs
                first.fused = self.found = True
                done[at:] = [*between, first] if rest.independent(one) else [first, *between]
                return True
        return False

    def _note(self, items: list[Item]) -> None:
        """Notes loads of a turn that bring the same."""
        seen: dict[object, Instruction] = {}
        for item in items:
            if isinstance(item, Instruction) and (part := _loaded(item)) is not None:
                first = seen.setdefault(part, item)
                if first is not item and first.writes[0].buffer.partition_bytes == (
                    item.writes[0].buffer.partition_bytes
                ):
                    self.same.append((first, item))


def _alike(first: Node, second: Node) -> bool:
    loops = first.loop, second.loop
    return (
        all(loop.kind is LoopKind.AFFINE for loop in loops)
        and first.loop.count == second.loop.count
        and first.indices == second.indices
        and not first.inputs.isdisjoint(second.inputs)
    )


def _fusible(first: Node, second: Node) -> bool:
    """Tells whether each turn of the second loop needs the same turn of the first alone, and loads most of
    what that loads."""
    before, after = ([Effects.of(turn) for turn in node.turns] for node in (first, second))
    for one, other in zip(before, after, strict=True):
        shared = sum(size for part, size in other.loads.items() if part in one.loads)
        if not other.loads or shared < SHARED * sum(other.loads.values()):
            return False
    return all(
        one.independent(other) for i, one in enumerate(before) for j, other in enumerate(after) if i != j
    )


def _tree(stream: Sequence[Event]) -> list[Item]:
    """Returns a stream as loops with their turns."""
    outermost: list[Item] = []
    items, nodes = outermost, list[Node]()
    for event in stream:
        if isinstance(event, Instruction):
            items.append(event)
            if nodes and (part := _loaded(event)) is not None:
                nodes[-1].inputs.add(part[0])
        elif isinstance(event, LoopBegin):
            nodes.append(Node(event.loop))
            items.append(nodes[-1])
        elif isinstance(event, Turn):
            items = []
            nodes[-1].turns.append(items)
            nodes[-1].indices.append(event.index)
        elif isinstance(event, Skip):
            nodes[-1].skip = event
        else:
            node = nodes.pop()
            if nodes:
                nodes[-1].inputs |= node.inputs
            items = nodes[-1].turns[-1] if nodes else outermost
    return outermost


def _flat(items: Iterable[Item]) -> Iterator[Event]:
    for item in items:
        if isinstance(item, Instruction):
            yield item
            continue
        yield LoopBegin(item.loop)
        for n, (index, turn) in enumerate(zip(item.indices, item.turns, strict=True)):
            if item.skip is not None and n == len(item.turns) - 1:
                yield item.skip
            yield Turn(item.loop, index)
            yield from _flat(turn)
        yield LoopEnd(item.loop)
