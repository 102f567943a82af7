"""Transfers that the compiler adds to a program, those that it leaves out, and the bytes of all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import ceil, prod

from corepipe.nki.core.buffers import Buffer, Region, Space
from corepipe.nki.core.instructions import Engine, Event, Instruction
from corepipe.nki.timing.blocks import Block, Program
from corepipe.nki.timing.spills import Absence
from corepipe.nki.timing.times import Traffic

SPILLED, RELOADED = "spilled", "reloaded"


@dataclass(slots=True, eq=False)
class Changes:
    """Instructions to add after and before positions of a stream, and positions to leave out."""

    gone: set[int] = field(default_factory=set)
    after: dict[int, list[Instruction]] = field(default_factory=dict)
    before: dict[int, list[Instruction]] = field(default_factory=dict)

    def applied(self, program: Program) -> tuple[list[Event], list[int]]:
        """Returns the changed stream, and how often each of its instructions is executed."""
        stream: list[Event] = []
        weights: list[int] = []
        for at, event in enumerate(program.stream):
            kept = () if at in self.gone else (event,)
            added = (*self.before.get(at, ()), *kept, *self.after.get(at, ()))
            stream.extend(added)
            weights.extend([program.weights[at]] * len(added))
        return stream, weights


@dataclass(slots=True, eq=False)
class Transfers:
    """Makes the transfers of a program's absences."""

    program: Program
    changes: Changes
    _scratch: dict[int, Buffer] = field(default_factory=dict)
    _saved: set[int] = field(default_factory=set)

    def add(self, absences: Iterable[Absence]) -> None:
        """Adds what the absences need, in the order of the program."""
        of_block: dict[int, list[Absence]] = {}
        for absence in absences:
            of_block.setdefault(id(absence.block), []).append(absence)
        for times in of_block.values():
            self._block(times[0].block, times)

    def _block(self, block: Block, times: list[Absence]) -> None:
        position = 0
        for n, absence in enumerate(times):
            start = position
            while block.touches[position] != absence.back:
                position += 1
            before = block.touches[start:position]
            end = times[n + 1].left if n + 1 < len(times) else block.dies
            if absence.saved:
                self._save(block, before, absence)
            elif not n and absence.share == 1.0 and all(self._loads(at) for at in before):
                self.changes.gone.update(at for at in before if len(self.program.used[at]) == 1)
            if not block.unread:
                self._bring_back(block, [at for at in block.touches[position:] if at <= end], absence)

    def _loads(self, at: int) -> bool:
        instruction = self.program.of(at)
        return instruction.op == "dma_copy" and instruction.reads[0].buffer.given

    def _save(self, block: Block, touches: list[int], absence: Absence) -> None:
        """Saves what was written since the block came."""
        region = self._union(block, [at for at in touches if at in block.written])
        scratch = Region(self._scratch_of(block.buffer), region.box)
        site = self.program.of(absence.left)
        self._saved.add(id(block))
        added = _transfer(region, scratch, site, absence.share, SPILLED, block.buffer.blocks)
        self.changes.after.setdefault(absence.left, []).append(added)

    def _bring_back(self, block: Block, touches: list[int], absence: Absence) -> None:
        """Loads what is used until the block leaves again, from where it was saved or from the input."""
        reads = [
            at for at in touches if at not in block.written or self.program.of(at).accumulates
        ] or touches
        region = self._union(block, reads)
        site = self.program.of(absence.back)
        blocks = block.buffer.blocks
        if id(block) in self._saved:
            scratch = Region(self._scratch_of(block.buffer), region.box)
            added = _transfer(scratch, region, site, absence.share, RELOADED, blocks)
        elif (load := next((at for at in sorted(block.written) if self._loads(at)), None)) is not None:
            first = self.program.of(load)
            added = _transfer(first.reads[0], region, site, absence.share, "", blocks)
            row = min(first.details["row_bytes"], added.details["row_bytes"])
            added.details = {**added.details, "row_bytes": row, "rows": -(-added.details["bytes"] // row)}
        else:
            return
        self.changes.before.setdefault(absence.back, []).append(added)

    def _union(self, block: Block, touches: list[int]) -> Region:
        """Returns the part of a block that instructions use."""
        boxes = [region.box for at in touches for b, region in self.program.used[at] if b is block]
        axes = zip(*boxes, strict=True)
        union = [(min(a for a, _ in axis), max(b for _, b in axis)) for axis in axes]
        union[: block.buffer.blocks] = [(i, i + 1) for i in block.index]
        return Region(block.buffer, tuple(union))

    def _scratch_of(self, buffer: Buffer) -> Buffer:
        scratch = self._scratch.get(id(buffer))
        if scratch is None:
            scratch = replace(
                buffer, name=f"spill of {buffer.name}", space=Space.HBM, data=None, written=None
            )
            self._scratch[id(buffer)] = scratch
        return scratch


def _transfer(
    source: Region, target: Region, cause: Instruction, share: float, kind: str, blocks: int
) -> Instruction:
    """Returns a transfer of a share of a region on chip, for the line of an instruction."""
    chip = target if source.buffer.space is Space.HBM else source
    lengths = [high - low for low, high in chip.box[blocks:]]
    partitions, free = lengths[0], prod(lengths[1:])
    row = free * chip.buffer.dtype.itemsize
    rows = ceil(partitions * share)
    details = {
        "bytes": round(partitions * row * share),
        "rows": rows,
        "row_bytes": row,
        "dtypes": (chip.buffer.dtype.name,) * 2,
    }
    if kind:
        details["kind"] = kind
    return Instruction(
        "dma_copy", (Engine.DMA,), partitions, free, (source,), (target,), cause.site, details=details
    )


def traffic(stream: Iterable[Event], weights: Iterable[int]) -> Traffic:
    """Returns the bytes that a stream moves between HBM and the core.

    Profiles count tensors that kernels keep in HBM for themselves as spilled (AccelOpt's swiglu), this does
    not.
    """
    sums = {"read": 0, "written": 0, SPILLED: 0, RELOADED: 0}
    for event, weight in zip(stream, weights, strict=True):
        if isinstance(event, Instruction) and Engine.DMA in event.engines:
            size = event.details.get("bytes", 0) * weight
            if _in_hbm(event.reads):
                sums["read"] += size
            if _in_hbm(event.writes):
                sums["written"] += size
            if kind := event.details.get("kind"):
                sums[kind] += size
    return Traffic(sums["read"], sums["written"], sums[SPILLED], sums[RELOADED])


def _in_hbm(regions: Iterable[Region]) -> bool:
    return any(region.buffer.space is Space.HBM for region in regions)
