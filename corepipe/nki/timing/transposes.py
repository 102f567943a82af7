"""Transposes on TensorE that move out of a loop with the load that brings what they transpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from corepipe.nki.core.buffers import Space
from corepipe.nki.timing.blocks import Block, Filling, Program


@dataclass(slots=True, eq=False)
class Transposes:
    """The transposes of what pairs of loads bring, the first load of each pair in the first turn.

    They move if each result is copied out of PSUM into a block that nothing else writes.
    """

    program: Program
    pairs: Sequence[tuple[Filling, Filling]]
    _gone: dict[int, set[int]] = field(default_factory=dict)
    """For each block of later turns, by id, the instructions that need not fill it."""
    _same: dict[int, tuple[Block, Block]] = field(default_factory=dict)
    """For each such block, by id, the one of the first turn and itself."""

    @property
    def size(self) -> float:
        """Bytes of a partition that the moved results take."""
        return sum(block.size for block in {id(first): first for first, _ in self._same.values()}.values())

    def find(self) -> None:
        for kept, load in self.pairs:
            if kept is not load and kept.block is not load.block:
                self._of_load(kept.block, load.block)
        for key, (_, block) in list(self._same.items()):
            sources = [b for at in block.written for b, _ in self.program.used[at] if b is not block]
            if not block.written.union(*(source.written for source in sources)) <= self._gone[key]:
                del self._same[key]

    def _of_load(self, first: Block, block: Block) -> None:
        """Pairs the transposes of one block with those of the block in the first turn."""
        before, after = (
            [at for at in b.touches if at not in b.written and self._transposes(at)] for b in (first, block)
        )
        for one, other in zip(before, after, strict=False):
            self._of_transpose(one, other, first, block)

    def _transposes(self, at: int) -> bool:
        return bool(self.program.of(at).details.get("is_transpose"))

    def _of_transpose(self, one: int, other: int, first: Block, block: Block) -> None:
        """Pairs the copies of two transposes' results."""
        operands = [
            {id(b) for b, _ in self.program.used[at] if b.buffer.space is Space.SBUF} - {id(source)}
            for at, source in ((one, first), (other, block))
        ]
        copy, again = self._only_copy(one), self._only_copy(other)
        if operands[0] != operands[1] or copy is None or again is None:
            return
        target, renewed = self._only_result(copy), self._only_result(again)
        if target is not None and renewed is not None and target is not renewed:
            self._gone.setdefault(id(renewed), set()).update((other, again))
            self._same[id(renewed)] = target, renewed

    def _only_copy(self, transpose: int) -> int | None:
        """Returns the one instruction that reads the result of a transpose, or of several in one tile."""
        result = self._only_result(transpose)
        if result is None or not all(self._transposes(at) for at in result.written):
            return None
        uses = [at for at in result.touches if at not in result.written]
        return uses[0] if len(uses) == 1 else None

    def _only_result(self, at: int) -> Block | None:
        blocks = [b for b, _ in self.program.used[at] if at in b.written]
        return blocks[0] if len(blocks) == 1 else None

    def move(self) -> set[int]:
        """Makes one block of the results of all turns; returns the instructions that are not needed."""
        gone: set[int] = set()
        for key, (first, block) in self._same.items():
            first.pinned = True
            gone |= self._gone[key]
            self.program.join(first, block)
        for first, _ in self._same.values():
            first.settle(gone)
        for at in gone:
            for block, _ in self.program.used[at]:
                if block.touches and at in block.touches and block.buffer.space is Space.PSUM:
                    block.settle(gone)
        return gone
