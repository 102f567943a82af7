"""The requests of simulations, where nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from corepipe.scheduler.request import Request
from corepipe.workload.workload import Session, Turn

KEY_BITS = 32
"""The number of bits of a block's key that hold the position in a segment."""


@dataclass(slots=True, eq=False)
class SimulatedRequest(Request):
    """A request whose tokens are counted, not known: `prompt` is a range of the right length.

    session, turn: what it came from.  Times in seconds, on the simulation's clock, of what has happened:
    scheduled_at (left the queue), first_at and last_at (its tokens; -1: none yet).
    """

    session: Session = field(kw_only=True)
    turn: int = field(kw_only=True)
    scheduled_at: float = field(default=-1.0, init=False)
    first_at: float = field(default=-1.0, init=False)
    last_at: float = field(default=-1.0, init=False)
    _keys: list[int] = field(default_factory=list, init=False)

    @classmethod
    def of(cls, number: int, session: Session, turn: int, arrival: float) -> SimulatedRequest:
        """The request of a session's turn."""
        asked = session.turns[turn]
        prompt = range(asked.prompt_tokens)
        return cls(str(number), prompt, asked.output_tokens, arrival, session=session, turn=turn)

    def __post_init__(self) -> None:
        self.tokens = []
        self.num_prompt = self.num_tokens = len(self.prompt)

    @property
    def asked(self) -> Turn:
        """Returns the turn of the workload that it is for."""
        return self.session.turns[self.turn]

    @property
    def num_results(self) -> int:
        """Returns the number of generated tokens; a request that generates none has one result."""
        return self.num_generated if self.max_tokens else 1

    def append(self, token: int) -> None:  # noqa: ARG002 -- its value is never read
        self.num_tokens += 1

    def block_key(self, index: int, size: int) -> int:
        """The segment in which the block ends, and where: the segment stands for all that precedes it."""
        if index < len(self._keys):
            return self._keys[index]
        if not self._keys:
            self._add_prompt_keys(size)
            if index < len(self._keys):
                return self._keys[index]
        return self.asked.answer << KEY_BITS | (index + 1) * size - self.num_prompt

    def keys_of(self, blocks: range, size: int) -> Sequence[int]:
        if not self._keys:
            self._add_prompt_keys(size)
        if blocks.stop <= len(self._keys):
            return self._keys[blocks.start : blocks.stop]
        return [self.block_key(index, size) for index in blocks]

    def _add_prompt_keys(self, size: int) -> None:
        """Those of the blocks that end in the prompt."""
        start, end = 0, size
        for segment in self.asked.prompt:
            behind = start + segment.tokens
            named = segment.id << KEY_BITS
            self._keys += [named | at - start for at in range(end, behind + 1, size)]
            end += (behind - end + size) // size * size if behind >= end else 0
            start = behind
