"""A request as the scheduler sees it: tokens known, tokens computed, blocks held."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from itertools import pairwise
from struct import pack
from typing import NamedTuple, Protocol


class FinishReason(StrEnum):
    """The reason for which a request ended; the values are those of the OpenAI API and of vLLM's metrics."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Status(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Rank(NamedTuple):
    """The order of requests: the smaller rank goes first.  `number` counts the requests as they were
    added."""

    priority: int
    arrival: float
    number: int


BACKGROUND = 2**31 - 1
"""The priority of requests that run only while there is no other: those of batches."""
BACKGROUND_TOKENS = 16
"""The most tokens of a batch of such requests: one that comes waits for no larger batch to end."""


def first_key(salt: str, adapter: str = "") -> bytes:
    """Returns the bytes that the key of a sequence's first block derives from. No salt can stand for an
    adapter: the byte 255 is in no text."""
    given = salt.encode()
    return sha256(b"\xff".join((b"", adapter.encode(), given)) if adapter else given).digest()


def next_key(parent: bytes, ids: Sequence[int]) -> bytes:
    """Returns the key of a full block of these tokens after the block with the key `parent`; it is the same
    in every process."""
    return sha256(parent + pack(f"{len(ids)}q", *ids)).digest()


@dataclass(slots=True, eq=False)
class Request:
    """One sequence to generate, or (`max_tokens` 0) one that ends when its prompt is computed.

    `num_tokens` tokens are known: the prompt, and what has been generated; `tokens` holds them.
    `num_computed` of them have been given to the device (counted when scheduled), `num_done` of them have
    come back.  The request is in flight while the two differ; drafts that are computed with it count, too.
    `stop_ids` end the request (eos among them, unless ignored) once `min_tokens` are generated.
    `arrival` is in seconds of the driver's clock.  Lower `priority` goes first; `BACKGROUND` is the last.
    `owner`: the API key or user that sent it; owners take turns.
    `cache_salt` keeps prefix-cache entries apart; `told_salt` is the salt that listeners outside may know.
    `adapter_key`: a hash of the content of the LoRA adapter that computes it; empty where there is none.
    `adapter_name`: its name for listeners outside.
    `prompt_logits`: the caller wants a result for every prompt position, so the prompt's cached prefix may
    not be skipped.
    `held`: it may not start yet, as something that it needs (a grammar) is not compiled yet.
    `complete`: no token can follow those that it has, whatever `stop_ids` and `min_tokens` say.
    `drafter`: proposes draft tokens for it, if there is one.  `drafted`: how many of them were accepted.
    """

    id: str
    prompt: Sequence[int]
    max_tokens: int
    arrival: float = 0.0
    priority: int = 0
    stop_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    cache_salt: str = ""
    told_salt: str = ""
    prompt_logits: bool = False
    owner: str = ""
    adapter_key: str = ""
    adapter_name: str = ""

    tokens: list[int] = field(init=False)
    num_prompt: int = field(init=False)
    num_tokens: int = field(init=False)
    num_most: int = field(init=False)
    """The number of known tokens with which it ends at the latest; set when it is added to a scheduler."""
    num_computed: int = field(default=0, init=False)
    num_done: int = field(default=0, init=False)
    num_cached: int = field(default=0, init=False)
    """Prompt tokens found in the prefix cache when first admitted."""
    num_preemptions: int = field(default=0, init=False)
    block_ids: list[int] = field(default_factory=list, init=False)
    state_ids: list[int] = field(default_factory=list, init=False)
    """The blocks of its states, of a model that has blocks of keys and values beside them."""
    room: int = field(default=0, init=False)
    """The number of positions that its blocks have room for, from the first on."""
    block_keys: list[bytes] = field(default_factory=list, init=False)
    """The keys that were computed so far."""
    told_keys: list[bytes] = field(default_factory=list, init=False)
    """The keys under `told_salt` that were computed so far."""
    status: Status = field(default=Status.WAITING, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    held: bool = field(default=False, init=False)
    complete: bool = field(default=False, init=False)
    drafter: Drafter | None = field(default=None, init=False)
    drafted: Drafted | None = field(default=None, init=False)
    rank: Rank = field(init=False, repr=False)
    """The order among requests; set when it is added to a scheduler."""

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.num_prompt = self.num_tokens = len(self.tokens)

    @property
    def in_background(self) -> bool:
        """Returns whether it runs only while there is no other."""
        return self.priority == BACKGROUND

    def append(self, token: int) -> None:
        """Adds a generated token."""
        self.tokens.append(token)
        self.num_tokens += 1

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds generated tokens."""
        self.tokens += tokens
        self.num_tokens += len(tokens)

    def retract(self, count: int) -> None:
        """Removes the last `count` tokens."""
        self.num_tokens -= count
        del self.tokens[self.num_tokens :]

    def block_key(self, index: int, size: int) -> Hashable:
        """Returns the key of full block number `index` of `size` tokens; keys must be requested in order.

        It stands for the block's tokens and all before them (`next_key`).  The first key derives from the
        salt and the adapter: only requests that have both in common share blocks.
        """
        keys = self.block_keys
        if index == len(keys):
            self._add_key(keys, self.cache_salt, size)
        return keys[index]

    def keys_of(self, blocks: range, size: int) -> Iterable[Hashable]:
        """Returns the `block_key` of each of these blocks."""
        return (self.block_key(index, size) for index in blocks)

    def told_key(self, index: int, size: int) -> bytes:
        """Returns the key of a full block for listeners outside: the same for the same tokens after the same
        `told_salt`, whichever request has them."""
        if self.told_salt == self.cache_salt and index < len(self.block_keys):
            return self.block_keys[index]
        while index >= len(self.told_keys):
            self._add_key(self.told_keys, self.told_salt, size)
        return self.told_keys[index]

    def _add_key(self, keys: list[bytes], salt: str, size: int) -> None:
        parent = keys[-1] if keys else first_key(salt, self.adapter_key)
        keys.append(next_key(parent, self.tokens[len(keys) * size : (len(keys) + 1) * size]))

    @property
    def num_generated(self) -> int:
        return self.num_tokens - self.num_prompt

    @property
    def generates(self) -> bool:
        """Returns whether the next chunk is the one token that was generated last."""
        return self.num_computed == self.num_tokens - 1 and self.num_tokens > self.num_prompt

    @property
    def in_flight(self) -> bool:
        return self.num_computed > self.num_done


@dataclass(slots=True)  # not frozen: one is made for each token, and that would take twice as long
class Chunk:
    """Tokens [start, start + count) of a request, to be computed in this batch.

    `samples`: the last known token is among them, so the batch yields what the request wants: a new token,
    or of one that generates nothing the result.
    `drafts`: the last of the tokens that are computed, which are drafts and not known; a token is drawn at
    the last known one and at each draft.
    """

    request: Request
    start: int
    count: int
    samples: bool
    drafts: Sequence[int] = ()

    def verified(self, drawn: Sequence[int]) -> Sequence[int]:
        """Returns the accepted ones of the tokens drawn at its rows: all up to the first that differs from
        its draft, as those behind it follow another token."""
        for at, (token, draft) in enumerate(zip(drawn, self.drafts, strict=False)):
            if token != draft:
                return drawn[: at + 1]
        return drawn


@dataclass(slots=True)  # not frozen, as one is made for each step
class Batch:
    """The chunks that one step computes.  `number` grows by one with each batch."""

    number: int
    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        return sum(c.count for c in self.chunks)


class TokenEvent(NamedTuple):
    """A result of a batch for one request: a new token, and perhaps its end; each of several tokens is an
    event.

    No token: a chunk of the prompt only, or with an end the result of a request that generates nothing.
    """

    request: Request
    token: int | None
    finish_reason: FinishReason | None


class Drafter(Protocol):
    """Proposes draft tokens for one request.  They decide how soon tokens come, never which."""

    def propose(self, request: Request, most: int) -> Sequence[int]:
        """Returns at most `most` (at least 1) tokens that may follow the known ones; none where it has no
        proposal."""

    def verified(self, drafts: int, accepted: int) -> None:
        """Notes that of the `drafts` tokens that were computed last the first `accepted` were accepted."""


@dataclass(slots=True)
class Drafted:
    """Counts of drafts: how many there were, of how many tokens, and how many of these were accepted, in all
    and by their position in the draft."""

    drafts: int = 0
    tokens: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)

    @property
    def histogram(self) -> list[int]:
        """Returns how many drafts had no token accepted, one, two and so on."""
        reached = [self.drafts, *self.accepted_per_position, 0]
        return [at_least - more for at_least, more in pairwise(reached)]

    def count(self, tokens: int, accepted: int) -> None:
        """Counts a draft of `tokens` tokens of which the first `accepted` were accepted."""
        self.drafts += 1
        self.tokens += tokens
        self.accepted += accepted
        places = self.accepted_per_position
        if accepted > len(places):
            places += [0] * (accepted - len(places))
        for place in range(accepted):
            places[place] += 1
