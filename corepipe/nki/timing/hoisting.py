"""Loads that do not change with the turns of a loop are moved out of it, if what they load fits.

A moved load stays where it is in the first turn of the loop, and later turns find its block there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from corepipe.nki.core.buffers import Box, Space
from corepipe.nki.core.instructions import Instruction
from corepipe.nki.timing.blocks import Block, Filling, Frame, Program, place_of, scanned
from corepipe.nki.timing.fusion import Fusion
from corepipe.nki.timing.liveness import alive
from corepipe.nki.timing.profile import MOVED_TRANSPOSES
from corepipe.nki.timing.transposes import Transposes

WORTH = 0.01
"""Share of all bytes read that moving a load must save.

AccelOpt's mamba: rows of B and C, a quarter of a percent together, are loaded again in each turn."""


@dataclass(slots=True, eq=False)
class Load(Filling):
    """One execution of a load, with the turns of the loops around it."""

    turns: tuple[int, ...]
    frames: tuple[Frame, ...]
    source: Box

    def first(self, depths: tuple[int, ...]) -> bool:
        """Tells whether this is the first turn of the loops at these depths."""
        return not any(self.turns[d] for d in depths)

    def others(self, depths: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the turns of the other loops."""
        return tuple(turn for d, turn in enumerate(self.turns) if d not in depths)


@dataclass(slots=True, eq=False)
class Loads:
    """All executions of one load of the kernel.  invariant: depths of loops whose turns do not change it."""

    executions: list[Load] = field(default_factory=list)
    invariant: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Motion:
    """A load that could be moved out of loops, by their depths.

    saved: bytes.  order: among all loads.  results: bytes of what moves with it.
    """

    loads: Loads
    depths: tuple[int, ...]
    saved: float
    order: int
    results: float = 0.0


def hoist(program: Program, limit: int, rules: frozenset[str]) -> set[int]:
    """Moves loads and returns the positions of instructions that are no longer needed.

    Blocks that were loaded again become one.  The largest savings come first; between equals the later load
    (AccelOpt's mamba moves `u`, not `delta`).  Tensors that live across the loop do not count, since they can
    be spilled (the same kernel spills its sums for `u`).
    """
    found = _loads(program)
    total = sum(_bytes(program, load.at) for loads in found for load in loads.executions)
    motions = sorted(_motions(program, found), key=lambda m: (-m.saved, m.depths, -m.order))
    moved: dict[int, Motion] = {}
    gone: set[int] = set()
    for motion in motions:
        if id(motion.loads) in moved or motion.saved < WORTH * total:
            continue
        room = limit - _needed(program, motion, list(moved.values()))
        if room >= 0:
            moved[id(motion.loads)] = motion
            pairs = _pairs(motion)
            transposes = Transposes(program, pairs)
            transposes.find()
            if rules >= {MOVED_TRANSPOSES.name} and transposes.size <= room:
                motion.results = transposes.size
                gone |= transposes.move()
            gone |= _merge(program, pairs, gone)
            for first, _ in pairs:
                first.block.pinned = True
    program.blocks = [block for block in program.blocks if block.touches]
    return gone


def _bytes(program: Program, at: int) -> float:
    return float(program.of(at).details["bytes"]) * program.weights[at]


def _loads(program: Program) -> list[Loads]:
    """Groups the executions of each load of an input that fills a block of its own."""
    groups: dict[object, Loads] = {}
    ordinals: dict[object, int] = {}
    for at, frame in program.around.items():
        if frame is None or (load := _load(program, at, frame)) is None:
            continue
        instruction = program.of(at)
        key = frame.key, instruction.site, id(instruction.reads[0].buffer), place_of(load.block.buffer)
        ordinal = ordinals[key, load.turns] = ordinals.get((key, load.turns), 0) + 1
        groups.setdefault((key, ordinal), Loads()).executions.append(load)
    for loads in groups.values():
        loads.invariant = _invariant(loads.executions)
    return [loads for loads in groups.values() if loads.invariant]


def _load(program: Program, at: int, frame: Frame) -> Load | None:
    """Returns the load at a position; None if its source may change or its block is written by others."""
    if (block := _filled(program, at)) is None:
        return None
    frames = [frame]
    while (outer := frames[0].outer) is not None:
        frames.insert(0, outer)
    source = program.of(at).reads[0].box
    return Load(at, block, tuple(_turn(f, at) for f in frames), tuple(frames), source)


def _filled(program: Program, at: int) -> Block | None:
    """Returns the block that a load of an input fills, if inputs alone do."""
    instruction, used = program.of(at), program.used[at]
    if len(instruction.reads) != 1 or not instruction.reads[0].buffer.given or len(used) != 1:
        return None
    block = used[0][0]
    if block.buffer.space is not Space.SBUF or block.buffer.address is not None:
        return None
    return block if all(_loads_input(program.of(w)) for w in block.written) else None


def _loads_input(instruction: Instruction) -> bool:
    return instruction.op == "dma_copy" and all(r.buffer.given for r in instruction.reads)


def _turn(frame: Frame, at: int) -> int:
    """Returns the number of the recorded turn that a position lies in."""
    low, high = 0, len(frame.turns)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if frame.turns[middle] <= at else (low, middle)
    return low


def _invariant(executions: list[Load]) -> list[int]:
    """Returns the depths of loops whose turns load the same."""
    found = []
    for depth in range(len(executions[0].turns)):
        sources: dict[tuple[int, ...], Box] = {}
        same = 0
        for load in executions:
            if sources.setdefault(load.others((depth,)), load.source) != load.source:
                break
            same += 1
        if same == len(executions) and len(sources) < same:
            found.append(depth)
    return found


def _motions(program: Program, found: list[Loads]) -> Iterable[Motion]:
    """Yields for each load and each loop that it does not depend on what moving it out of there saves."""
    for order, loads in enumerate(found):
        every = sum(_bytes(program, load.at) for load in loads.executions)
        for depth in loads.invariant:
            depths = tuple(d for d in loads.invariant if d >= depth)
            once = sum(_bytes(program, load.at) for load in loads.executions if load.first(depths))
            yield Motion(loads, depths, every - once, order)


def _needed(program: Program, motion: Motion, moved: list[Motion]) -> float:
    """Returns the bytes of what a motion loads, what one turn of the loop needs, and what moved before."""
    frame = motion.loads.executions[0].frames[motion.depths[0]]
    last = len(frame.turns) - 1
    first, end = frame.turns[last], frame.end
    own = {id(load.block) for load in motion.loads.executions}
    within = [
        block
        for block in program.blocks
        if block.touches
        and block.buffer.space is Space.SBUF
        and first <= block.born
        and block.dies <= end
        and id(block) not in own
    ]
    needed = max(alive(within, len(program.stream)), default=0.0)
    held = sum(_held(other, frame) for other in moved)
    return needed + held + _held(motion, frame)


def _held(motion: Motion, frame: Frame) -> float:
    """Returns the bytes of a moved load's blocks that are alive throughout a loop's execution."""
    blocks: dict[int, tuple[Block, int]] = {}
    for load in motion.loads.executions:
        around = load.frames[motion.depths[0]]
        if load.first(motion.depths) and (around is frame or around.begin <= frame.begin <= around.end):
            inner = 1
            for f, turn in zip(load.frames, load.turns, strict=True):
                if f.begin > around.begin and f.loop.skipped and turn == len(f.turns) - 2:
                    inner *= f.loop.skipped + 1
            blocks[id(load.block)] = load.block, inner
    return sum(block.size * inner for block, inner in blocks.values()) + motion.results


def _pairs(motion: Motion) -> list[tuple[Load, Load]]:
    """Returns each load with the one whose block it finds; the same one in the first turn."""
    first: dict[tuple[object, ...], Load] = {}
    outermost = motion.depths[0]
    return [
        (first.setdefault((load.frames[outermost], *load.others(motion.depths)), load), load)
        for load in motion.loads.executions
    ]


def fuse(program: Program) -> tuple[Program, set[int]]:
    """Returns a program with loops fused, and the positions of instructions that it no longer needs."""
    fusion = Fusion()
    stream = fusion.run(program.stream)
    if stream is program.stream:
        return program, set()
    program = scanned(stream)
    position = {id(event): at for at, event in enumerate(stream)}
    pairs = []
    for first, again in fusion.same:
        kept, block = (_filled(program, position[id(load)]) for load in (first, again))
        if kept is not None and block is not None and kept is not block:
            pairs.append((Filling(position[id(first)], kept), Filling(position[id(again)], block)))
    transposes = Transposes(program, pairs)
    transposes.find()
    gone = transposes.move()
    gone |= _merge(program, pairs, gone)
    program.blocks = [block for block in program.blocks if block.touches]
    return program, gone


def _merge(program: Program, pairs: Sequence[tuple[Filling, Filling]], gone: set[int]) -> set[int]:
    """Joins the blocks of all turns with those of the first; returns the loads that are not needed."""
    joined: dict[int, Block] = {}
    loads: set[int] = set()
    for kept, load in pairs:
        joined[id(kept.block)] = kept.block
        if kept is not load:
            loads.add(load.at)
            if kept.block is not load.block:
                program.join(kept.block, load.block)
    for block in joined.values():
        block.settle(gone | loads)
    return loads
