"""A device for the scheduler to run on: a KV memory that remembers what was written where, and a model
whose next token depends on every token before it.  Every move is checked against what must always hold."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from zlib import crc32

from corepipe.scheduler.next_batch import policy
from corepipe.scheduler.request import Batch, Chunk, FinishReason, Request, Status
from corepipe.scheduler.scheduler import Pipeline, Scheduler, SchedulerConfig
from corepipe.scheduler.windowed_kv_cache import EMPTY, most_blocks

VOCAB = 5

MOST_DRAFTS = 6


def config(**limits) -> SchedulerConfig:
    """Roomy limits, but for those that are given."""
    roomy = {
        "num_blocks": 64,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 128,
        "prefix_cache": True,
        "max_queued_requests": 1000,
        "max_queued_tokens": 100_000,
    }
    return SchedulerConfig(**{**roomy, **limits})


@dataclass(frozen=True)
class Fixed:
    """A pipeline that is best with so many batches."""

    generating: int
    in_flight: int

    def generating_batches(self, sequences: int, _tokens: int) -> int:
        return min(self.generating, sequences)

    def batches_with_prompts(self, sequences: int, tokens: int, _prompt: int) -> int:
        generating = self.generating_batches(sequences, tokens) if sequences else 0
        return max(generating, self.in_flight)


@dataclass(frozen=True)
class Fickle(Fixed):
    """A pipeline that likes others to go in other numbers of batches."""

    table: tuple[int, ...]

    def generating_batches(self, sequences: int, tokens: int) -> int:
        return min(sequences, self.table[(3 * sequences + tokens // 16) % len(self.table)])


def any_pipeline(rng: random.Random, stages: int) -> Pipeline:
    """A pipeline with random choices, as irregular as any cost model could make them."""
    table = tuple(rng.randint(1, stages + 1) for _ in range(16))
    return Fickle(0, rng.randint(1, stages + 1), table)


def run(scheduler: Scheduler, batch: Batch, token: int = 1):
    """Lands a batch; every chunk that samples gets the same token, unless its request generates nothing."""
    return scheduler.update(batch, [[token] if generates(chunk) else [] for chunk in batch.chunks])


def generates(chunk: Chunk) -> bool:
    """Returns whether the chunk yields a token."""
    return chunk.samples and chunk.request.max_tokens > 0


def spans(batch: Batch) -> list[tuple[str, int, int]]:
    """(id, start, count) of each chunk."""
    return [(chunk.request.id, chunk.start, chunk.count) for chunk in batch.chunks]


def states(request: Request, tokens: list[int]) -> list[int]:
    """Returns the content of the KV cache at each position: a number made of the salt and all tokens so
    far."""
    state, result = crc32(request.cache_salt.encode()), []
    for token in tokens:
        state = (state * 6364136223846793005 + token + 1) % 2**64
        result.append(state)
    return result


def next_token(state: int) -> int:
    return (state >> 33) % VOCAB


def answer(request: Request, max_model_len: int) -> tuple[list[int], FinishReason]:
    """All tokens of the request, generated one after the other with nothing else around."""
    tokens = list(request.prompt)
    if request.max_tokens == 0:
        return tokens, FinishReason.STOP
    while True:
        tokens.append(next_token(states(request, tokens)[-1]))
        generated = len(tokens) - len(request.prompt)
        if tokens[-1] in request.stop_ids and generated >= request.min_tokens:
            return tokens, FinishReason.STOP
        if generated == request.max_tokens or len(tokens) == max_model_len:
            return tokens, FinishReason.LENGTH


Cell = tuple[int, int]
"""A block, and an offset in it."""


@dataclass
class Reads:
    """The cells that a chunk in flight reads, its own positions among them, with their contents; and the
    tokens that are drawn at its rows.  states: the blocks of states that it reads or writes."""

    chunk: Chunk
    cells: dict[Cell, tuple[int, int]]
    drawn: list[int]
    states: set[int] = field(default_factory=set)


class Guesser:
    """Guesses what comes next, rightly as often as it happens; keeps what it was told of its guesses."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._rightly = rng.choice([0.0, 0.5, 0.9, 1.0])
        self.drafts = self.accepted = 0

    def propose(self, request: Request, most: int) -> list[int]:
        assert most >= 1
        tokens = list(request.tokens)
        for _ in range(self._rng.randint(0, min(most, MOST_DRAFTS))):
            right = next_token(states(request, tokens)[-1])
            tokens.append(right if self._rng.random() < self._rightly else self._rng.randrange(VOCAB))
        return tokens[request.num_tokens :]

    def verified(self, drafts: int, accepted: int) -> None:
        assert 0 <= accepted <= drafts <= MOST_DRAFTS
        self.drafts += drafts
        self.accepted += accepted


class World:
    """`recurrent`: what is kept of a sequence is one state, or one beside its keys and values; its device
    keeps what it was after the last token of a block, or after the latest one, and reads it where the next
    one is computed."""

    def __init__(
        self, limits: SchedulerConfig, policy_name: str, pipeline: Pipeline, *, recurrent: bool = False
    ) -> None:
        self.limits = limits
        self.recurrent = recurrent
        self.attends = limits.keeps_state and (not recurrent or limits.num_states > 0)
        self.span = limits.state_span or limits.block_size
        self.segregated = policy_name == "segregated"
        self.scheduler = Scheduler(limits, policy(policy_name), pipeline)
        self.memory: dict[Cell, tuple[int, int]] = {}
        self.states: dict[int, int] = {}
        self.flights: deque[tuple[Batch, list[Reads]]] = deque()
        self.ends: dict[Request, int] = {}
        self.progress: dict[Request, tuple[int, int]] = {}
        self.batches = 0
        self.taken_along = 0
        """Blocks that a sequence took with it, as there was no other."""

    def add(self, request: Request) -> None:
        self.scheduler.add(request)
        self.ends[request] = 0
        self.check()

    def abort(self, request: Request) -> None:
        ended = self.ends[request] > 0
        found = self.scheduler.abort(request.id)
        assert found is (None if ended else request)
        if not ended:
            self._end(request, FinishReason.ABORT)
        self.check()

    def schedule(self) -> Batch | None:
        batch = self.scheduler.schedule()
        if batch is None:
            # Whoever waits, waits for a batch in flight.
            assert self.flights or not self.scheduler.has_unfinished()
        else:
            self.batches += 1
            assert batch.number == self.batches
            assert len(self.flights) < self.limits.most_in_flight
            self._check_batch(batch)
            self.flights.append((batch, [self._compute(chunk) for chunk in batch.chunks]))
        self.check()
        return batch

    def land(self) -> None:
        batch, reads = self.flights.popleft()
        for read in reads:
            assert read.cells.items() <= self.memory.items(), "overwritten in flight"
        lives = [chunk.request for chunk in batch.chunks if self.ends[chunk.request] == 0]
        events = self.scheduler.update(batch, [read.drawn for read in reads])
        assert list(dict.fromkeys(event.request for event in events)) == lives
        for request, of_request in groupby(events, attrgetter("request")):
            told = [event.token for event in of_request]
            assert told == [None] or request.tokens[-len(told) :] == told
            assert request.max_tokens > 0 or told == [None]
        for event in events:
            if event.finish_reason is not None:
                self._end(event.request, event.finish_reason)
        for chunk in batch.chunks:
            if chunk.drafts and self.ends[chunk.request] == 0:  # what was guessed wrongly was never computed
                self.progress[chunk.request] = (chunk.request.num_preemptions, chunk.request.num_done)
        self.check()

    def finish(self) -> None:
        """Drives every request to its end."""
        known = sum(len(r.prompt) + r.max_tokens for r in self.ends)
        deadline = self.batches + 200 + 20 * known
        while self.scheduler.has_unfinished() or self.flights:
            while self.schedule() is not None:
                assert self.batches < deadline, "requests starve"
            self.land()
        assert all(count == 1 for count in self.ends.values())
        assert self.limits.keeps_state or self.scheduler.preemptions == 0
        assert self.scheduler.blocks_held == 0
        assert self.scheduler.running == self.scheduler.waiting == self.scheduler.waiting_tokens == 0

    def check(self) -> None:
        self.scheduler.check()
        assert self.scheduler.running <= self.limits.max_num_seqs
        block_size = self.limits.block_size
        if self.attends:
            holders: dict[int, list[tuple[Request, int]]] = {}
            for request in self.ends:
                for group in range(len(self.limits.windows)):
                    for row, block in enumerate(request.block_ids[group :: self.limits.tables]):
                        if block != EMPTY:
                            holders.setdefault(block, []).append((request, row))
                if self.ends[request] == 0:  # who was aborted in flight keeps all until it comes back
                    self._check_windows(request)
            assert len(holders) == self.scheduler.blocks_held
            for sharers in holders.values():
                if len(sharers) > 1:
                    assert all(request.num_done >= (row + 1) * block_size for request, row in sharers)
            for _, reads in self.flights:
                assert all(block in holders for read in reads for block, _ in read.cells), "freed in flight"
        if self.recurrent:
            self._check_all_states()

    def _check_all_states(self) -> None:
        """Each sequence has one, several may have a snapshot together, and all that is in flight is held."""
        held: dict[int, list[tuple[Request, int]]] = {}
        for request in self.ends:
            table = request.state_ids if self.attends else request.block_ids
            for place, block in enumerate(table):
                if block != EMPTY and block not in table[place + 1 : place + 2]:
                    held.setdefault(block, []).append((request, place))
            if self.ends[request] == 0:
                self._check_states(request, table)
        assert self.attends or len(held) == self.scheduler.blocks_held
        for sharers in held.values():
            if len(sharers) > 1:
                assert all(request.num_done >= (place + 1) * self.span for request, place in sharers)
        for _, reads in self.flights:
            assert all(block in held for read in reads for block in read.states), "freed in flight"

    def _check_states(self, request: Request, table: list[int]) -> None:
        """A sequence has one state, however long it is, and those before which what is in flight begins."""
        places = [place for place, block in enumerate(table) if block != EMPTY]
        in_flight = sum(c.request is request for batch, _ in self.flights for c in batch.chunks)
        assert len({table[place] for place in places}) <= 1 + in_flight
        assert places[-1:] == [len(table) - 1] or not places
        if request.num_done % self.limits.block_size == 1 or (not self.attends and places):
            latest = (request.num_done - 1) // self.span
            assert all(place >= latest for place in places), "what has been read is given back"

    def _check_windows(self, request: Request) -> None:
        """A window holds no more than it may, and has no hole in what the next token sees."""
        windows, size, tables = self.limits.windows, self.limits.block_size, self.limits.tables
        drafts = 0 if request.drafter is None else MOST_DRAFTS
        in_flight = max(1 + drafts, request.num_computed - request.num_done)
        for group, window in enumerate(windows):
            column = request.block_ids[group::tables]
            held = [row for row, block in enumerate(column) if block != EMPTY]
            first = 0 if window is None else max(0, request.num_done - window + 1) // size
            assert set(range(first, len(column))) <= set(held)
            assert window is None or len(held) <= most_blocks(window, in_flight, size)

    def _check_batch(self, batch: Batch) -> None:
        chunks, limits = batch.chunks, self.limits
        assert 0 < batch.num_tokens <= limits.max_num_batched_tokens
        assert len({chunk.request for chunk in chunks}) == len(chunks)
        assert all(chunk.request.status is Status.RUNNING for chunk in chunks)
        if any(chunk.drafts for chunk in chunks) or (self.segregated and len(chunks) > 1):
            assert all(chunk.count - len(chunk.drafts) == 1 for chunk in chunks)
            assert all(chunk.request.num_generated > 0 for chunk in chunks)

    def _compute(self, chunk: Chunk) -> Reads:
        """Computes a chunk at once: batches run in the order in which they are submitted."""
        request, end = chunk.request, chunk.start + chunk.count
        self._check_order(chunk)
        assert self.limits.keeps_state or not request.block_ids
        expected = states(request, [*request.tokens[: end - len(chunk.drafts)], *chunk.drafts])
        kept = self._recur(chunk, expected) if self.recurrent else set()
        seen = self._attend(chunk, expected) if self.attends else {}
        drawing = expected[end - len(chunk.drafts) - 1 :] if generates(chunk) else []
        return Reads(chunk, seen, [next_token(state) for state in drawing], kept)

    def _attend(self, chunk: Chunk, expected: list[int]) -> dict[Cell, tuple[int, int]]:
        """Writes what each position has, and reads what its groups look back to."""
        size, windows, end = self.limits.block_size, self.limits.windows, chunk.start + chunk.count
        seen: dict[Cell, tuple[int, int]] = {}
        for group, window in enumerate(windows):
            table = chunk.request.block_ids[group :: self.limits.tables]
            oldest = 0 if window is None else max(0, chunk.start - window + 1)
            cells = {p: (table[p // size], p % size) for p in range(oldest, end)}
            self.memory.update({cells[p]: (group, expected[p]) for p in range(chunk.start, end)})
            seen.update({cell: (group, expected[p]) for p, cell in cells.items()})
        assert seen.items() <= self.memory.items(), "reads what it should not"
        return seen

    def _recur(self, chunk: Chunk, expected: list[int]) -> set[int]:
        """Reads the state before the chunk, and writes the one after it, over the other where both are in one
        block."""
        size, table, end = (
            self.limits.block_size,
            self._state_column(chunk.request),
            chunk.start + chunk.count,
        )
        blocks = {table[(end - 1) // size]}
        if chunk.start > 0:
            before = table[(chunk.start - 1) // size]
            assert self.states[before] == expected[chunk.start - 1], "reads what it should not"
            span = self.limits.state_span
            self.taken_along += before in blocks and span is not None and chunk.start % span == 0
            blocks.add(before)
        self.states[table[(end - 1) // size]] = expected[end - 1]
        return blocks

    def _state_column(self, request: Request) -> list[int]:
        return request.block_ids[1::2] if self.attends else request.block_ids

    def _check_order(self, chunk: Chunk) -> None:
        request = chunk.request
        preemptions, end = self.progress.get(request, (-1, 0))
        if preemptions == request.num_preemptions:
            assert chunk.start == end
        else:
            assert chunk.start % self.limits.block_size == 0
            assert chunk.start == 0 or (self.limits.prefix_cache and not request.prompt_logits)
        end = chunk.start + chunk.count
        assert chunk.count > 0
        assert not self.limits.whole_prompts or chunk.count == len(request.prompt)
        span = self.limits.state_span
        assert span is None or (end - 1) // span == chunk.start // span
        known = end - len(chunk.drafts)
        assert chunk.samples == (known == len(request.tokens))
        assert request.num_computed == end
        assert known <= len(request.tokens)
        assert end < self.limits.max_model_len or request.max_tokens == 0
        self.progress[request] = (request.num_preemptions, end)

    def _end(self, request: Request, reason: FinishReason) -> None:
        self.ends[request] += 1
        assert self.ends[request] == 1
        assert request.status is Status.FINISHED
        assert request.finish_reason is reason
        tokens, expected = answer(request, self.limits.max_model_len)
        if reason is FinishReason.ABORT:
            assert request.tokens == tokens[: len(request.tokens)]
        else:
            assert (request.tokens, reason) == (tokens, expected)
