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
    """Why a request ended; the values are those of the OpenAI API and of vLLM's metrics."""

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
    """Who goes first: the smaller.  `number` counts the requests as they were added."""

    priority: int
    arrival: float
    number: int


def first_key(salt: str) -> bytes:
    """What the key of a sequence's first block derives from."""
    return sha256(salt.encode()).digest()


def next_key(parent: bytes, ids: Sequence[int]) -> bytes:
    """Of a full block of these tokens behind the one with the key `parent`: in every process the same."""
    return sha256(parent + pack(f"{len(ids)}q", *ids)).digest()


@dataclass(slots=True, eq=False)
class Request:
    """One sequence to generate, or (`max_tokens` 0) one that ends when its prompt is computed.

    `num_tokens` tokens are known: the prompt, and what has been generated; `tokens` holds them.
    `num_computed` of them have been given to the device (counted when scheduled), `num_done` of them have
    come back.  The request is in flight while the two differ; drafts that are computed with it count, too.
    `stop_ids` end the request (eos among them, unless ignored) once `min_tokens` are generated.
    `arrival` is in seconds of the driver's clock.  Lower `priority` goes first.
    `owner`: whose it is; owners take turns.
    `cache_salt` keeps prefix-cache entries apart; `told_salt` is what of it others may know.
    `prompt_logits`: the caller wants a result for every prompt position, so the prompt's cached prefix may
    not be skipped.
    `held`: it may not start yet, as something that it needs is still being made.
    `complete`: nothing can follow what it has, whatever `stop_ids` and `min_tokens` say.
    `drafter`: who guesses how it goes on, if anybody does.  `drafted`: what has come of it.
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

    tokens: list[int] = field(init=False)
    num_prompt: int = field(init=False)
    num_tokens: int = field(init=False)
    num_most: int = field(init=False)
    """Known tokens with which it ends at the latest, from when it is added to a scheduler on."""
    num_computed: int = field(default=0, init=False)
    num_done: int = field(default=0, init=False)
    num_cached: int = field(default=0, init=False)
    """Prompt tokens found in the prefix cache when first admitted."""
    num_preemptions: int = field(default=0, init=False)
    block_ids: list[int] = field(default_factory=list, init=False)
    state_ids: list[int] = field(default_factory=list, init=False)
    """Where its states are, if there are blocks of keys and values beside."""
    room: int = field(default=0, init=False)
    """Positions that its blocks are for, from the first on."""
    block_keys: list[bytes] = field(default_factory=list, init=False)
    """Those that have been asked for."""
    told_keys: list[bytes] = field(default_factory=list, init=False)
    """As `block_keys`."""
    status: Status = field(default=Status.WAITING, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    held: bool = field(default=False, init=False)
    complete: bool = field(default=False, init=False)
    drafter: Drafter | None = field(default=None, init=False)
    drafted: Drafted | None = field(default=None, init=False)
    rank: Rank = field(init=False, repr=False)
    """From when it is added to a scheduler on."""

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.num_prompt = self.num_tokens = len(self.tokens)

    def append(self, token: int) -> None:
        """Adds a generated token."""
        self.tokens.append(token)
        self.num_tokens += 1

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds generated tokens."""
        self.tokens += tokens
        self.num_tokens += len(tokens)

    def retract(self, count: int) -> None:
        """Takes so many of the tokens away that were added last."""
        self.num_tokens -= count
        del self.tokens[self.num_tokens :]

    def block_key(self, index: int, size: int) -> Hashable:
        """What full block number `index` of `size` tokens is found by; asked for in order.

        It stands for the block's tokens and all before them (`next_key`).  The first key derives from the
        salt: only requests of the same salt share blocks.
        """
        keys = self.block_keys
        if index == len(keys):
            self._add_key(keys, self.cache_salt, size)
        return keys[index]

    def keys_of(self, blocks: range, size: int) -> Iterable[Hashable]:
        """`block_key` of each of these."""
        return (self.block_key(index, size) for index in blocks)

    def told_key(self, index: int, size: int) -> bytes:
        """As `block_key`, for others to know: of the same tokens after the same `told_salt` it is the same,
        whoever asks."""
        if self.told_salt == self.cache_salt and index < len(self.block_keys):
            return self.block_keys[index]
        while index >= len(self.told_keys):
            self._add_key(self.told_keys, self.told_salt, size)
        return self.told_keys[index]

    def _add_key(self, keys: list[bytes], salt: str, size: int) -> None:
        parent = keys[-1] if keys else first_key(salt)
        keys.append(next_key(parent, self.tokens[len(keys) * size : (len(keys) + 1) * size]))

    @property
    def num_generated(self) -> int:
        return self.num_tokens - self.num_prompt

    @property
    def generates(self) -> bool:
        """Whether the next chunk is the one token that was generated last."""
        return self.num_computed == self.num_tokens - 1 and self.num_tokens > self.num_prompt

    @property
    def in_flight(self) -> bool:
        return self.num_computed > self.num_done


@dataclass(slots=True)  # not frozen: one is made for each token, and that would take twice as long
class Chunk:
    """Tokens [start, start + count) of a request, to be computed in this batch.

    `samples`: the last known token is among them, so the batch yields what the request wants: a new token,
    or of one that generates nothing the result.
    `drafts`: the last of the tokens that are computed, which are guessed and not known; a token is drawn at
    the last known one and at each of them.
    """

    request: Request
    start: int
    count: int
    samples: bool
    drafts: Sequence[int] = ()

    def verified(self, drawn: Sequence[int]) -> Sequence[int]:
        """What stands of the tokens drawn at its rows: all up to the first that is not what was guessed, for
        those behind it follow another token."""
        for at, (token, draft) in enumerate(zip(drawn, self.drafts, strict=False)):
            if token != draft:
                return drawn[: at + 1]
        return drawn


@dataclass(slots=True)  # not frozen, as one is made for each step
class Batch:
    """What one step computes.  `number` grows by one with each batch."""

    number: int
    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        return sum(c.count for c in self.chunks)


class TokenEvent(NamedTuple):
    """What a batch meant for one request: a new token, and its end; of several tokens each is an event.

    No token: a chunk of the prompt only, or with an end the result of a request that generates nothing.
    """

    request: Request
    token: int | None
    finish_reason: FinishReason | None


class Drafter(Protocol):
    """Guesses for one request.  What it says decides how soon tokens come, and never which."""

    def propose(self, request: Request, most: int) -> Sequence[int]:
        """At most so many tokens that may follow those that are known; none where it has no idea.  `most` is
        at least 1."""

    def verified(self, drafts: int, accepted: int) -> None:
        """Of the `drafts` that were computed last so many, the first ones, were what the model draws."""


@dataclass(slots=True)
class Drafted:
    """What has come of guesses: how many there were, of how many tokens; how many of these were right, in all
    and by their place in the guess."""

    drafts: int = 0
    tokens: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)

    @property
    def histogram(self) -> list[int]:
        """How many guesses had none right, one, two and so on."""
        reached = [self.drafts, *self.accepted_per_position, 0]
        return [at_least - more for at_least, more in pairwise(reached)]

    def count(self, tokens: int, accepted: int) -> None:
        """A guess of so many tokens has come back."""
        self.drafts += 1
        self.tokens += tokens
        self.accepted += accepted
        places = self.accepted_per_position
        if accepted > len(places):
            places += [0] * (accepted - len(places))
        for place in range(accepted):
            places[place] += 1
