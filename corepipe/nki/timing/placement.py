"""Placement: intermediates that go to PSUM, and how many blocks of each tensor exist at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from corepipe.nki.core.buffers import Buffer, Region, Space
from corepipe.nki.core.instructions import Engine, Event, Instruction
from corepipe.nki.timing.blocks import Block, Place, Program, place_of
from corepipe.nki.timing.liveness import alive, together

BANK = 2 << 10

SMALL = 4 << 10
"""Bytes of a partition that a tensor may take for as many blocks as it wants, however little is free."""

MOST_COPIES = {Space.SBUF: 4, Space.PSUM: 8}
"""Times that a tensor's blocks exist beyond those that are alive together in the order of the program."""


def to_psum(program: Program) -> None:
    """Moves results of tensor_scalar to PSUM that the next instruction, a tensor_tensor, alone reads.

    It halves the time of the tensor_tensor.  AccelOpt's adamw: three of them in each turn, no other result.
    """
    stream = list(program.stream)
    pairs: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for block in program.blocks:
        sizes[id(block.buffer)] = sizes.get(id(block.buffer), 0) + 1
        if _is_pair(program, block):
            pairs.setdefault(id(block.buffer), []).append(block.born)
    moved: dict[int, Buffer] = {}
    for key, firsts in pairs.items():
        if len(firsts) == sizes[key]:
            for at in firsts:
                for position in (at, at + 1):
                    stream[position] = _moved(program.of(position), stream[position], key, moved)
    program.stream = stream


def _is_pair(program: Program, block: Block) -> bool:
    """Tells whether one tensor_scalar writes a block and the tensor_tensor after it alone reads it."""
    if block.buffer.space is not Space.SBUF or len(block.touches) != 2 or block.size > BANK:
        return False
    first, second = block.touches
    if second != first + 1 or program.of(first).op != "tensor_scalar" or block.buffer.address is not None:
        return False
    reader = program.of(second)
    return reader.op == "tensor_tensor" and all(r.buffer.space is Space.SBUF for r in reader.reads)


def _moved(original: Instruction, now: Event, key: int, moved: dict[int, Buffer]) -> Instruction:
    """Returns an instruction with one of its buffers in PSUM."""
    assert isinstance(now, Instruction)

    def there(region: Region) -> Region:
        if id(region.buffer) != key:
            return region
        if key not in moved:
            moved[key] = replace(region.buffer, space=Space.PSUM, data=None, written=None)
        return Region(moved[key], region.box)

    return replace(
        now,
        reads=tuple(there(r) for r in now.reads),
        writes=tuple(there(r) for r in now.writes),
        engines=tuple(e for e in original.engines if e is not Engine.GPSIMD) or original.engines,
    )


@dataclass(slots=True, eq=False)
class Family:
    """The blocks of a place.

    size: bytes of one.  together: how many are alive at a time.  first, last: where they are in the program.
    addresses: different addresses that the kernel gives them.  transferred: DMA reads or writes them.
    """

    size: float
    space: Space
    blocks: list[Block] = field(default_factory=list)
    together: int = 0
    first: int = 0
    last: int = 0
    copies: int = 0
    transferred: bool = False

    def measure(self, program: Program) -> None:
        self.first = min(block.born for block in self.blocks)
        self.last = max(block.dies for block in self.blocks)
        self.together = together(self.blocks)
        self.copies = self.together
        self.transferred = any(
            program.of(at).op == "dma_copy" for block in self.blocks[:2] for at in block.touches
        )

    def fix(self) -> None:
        """Takes the number that the kernel gives: with the addresses, or by different ones."""
        buffers = [block.buffer for block in self.blocks]
        if buffers[0].address is not None:
            addresses = {buffer.address for buffer in buffers}
            self.copies = buffers[0].existing * len(addresses) or max(len(addresses), self.together)


def copies(program: Program, limits: dict[Space, int]) -> dict[Place, int]:
    """Returns how many blocks of each place exist at a time.

    Those that are alive together in the order of the program, and as many more as fit in what is free all
    the while: first of what DMA moves, then of all.  Addresses that the kernel gives fix the number.
    """
    found: dict[Place, int] = {}
    for space, limit in limits.items():
        families = _families(program, space)
        free = _Free(program, space, limit)
        for family in families.values():
            family.fix()
        growing = sorted(
            (f for f in families.values() if f.blocks[0].buffer.address is None),
            key=lambda f: (not f.transferred, f.size),
        )
        for times in range(2, MOST_COPIES[space] + 1):
            for family in growing:
                more = times * family.together - family.copies
                small = space is Space.SBUF and times * family.together * family.size <= SMALL
                free.take(family, more if small else min(more, free.number(family)))
        found.update((place, family.copies) for place, family in families.items())
    return found


def _families(program: Program, space: Space) -> dict[Place, Family]:
    families: dict[Place, Family] = {}
    for block in program.blocks:
        if block.buffer.space is space:
            families.setdefault(place_of(block.buffer), Family(_taken(block), space)).blocks.append(block)
    for family in families.values():
        family.measure(program)
    return families


def _taken(block: Block) -> float:
    """Returns the bytes that a block takes: in PSUM, what is larger than half of a bank takes banks."""
    if block.buffer.space is Space.PSUM and block.size > BANK / 2:
        return -(-block.size // BANK) * BANK
    return block.size


class _Free:
    """Bytes of a memory that are free, by stretches of the program."""

    STRETCHES = 64

    def __init__(self, program: Program, space: Space, limit: int) -> None:
        blocks = [b for b in program.blocks if b.buffer.space is space]
        over_time = alive(blocks, len(program.stream))
        self._length = max(1, -(-len(over_time) // self.STRETCHES))
        self._free = [
            limit - max(over_time[i : i + self._length]) for i in range(0, len(over_time), self._length)
        ]

    def _stretches(self, family: Family) -> range:
        return range(family.first // self._length, family.last // self._length + 1)

    def number(self, family: Family) -> int:
        """Returns how many more blocks fit."""
        return max(0, int(min(self._free[i] for i in self._stretches(family)) // max(1.0, family.size)))

    def take(self, family: Family, more: int) -> None:
        if more > 0:
            family.copies += more
            for i in self._stretches(family):
                self._free[i] -= more * family.size
