"""The draft model's cache is right, whatever requests share, give back and find its blocks again."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.engine.batch.requests import SampledRequest
from corepipe.engine.drafters.draft_cache import DraftCache, DraftProgress
from corepipe.engine.drafters.draft_model import DraftModel
from corepipe.engine.drafters.speculation import RequestDrafter
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.neuron.step import SamplingBatch, StepInputs, StepOutput
from corepipe.scheduler.request import Batch, Request
from corepipe.scheduler.scheduler import Scheduler
from tests.scheduler.world import config

VOCAB = 7
SIZE = 4


def after(before: int, token: int) -> int:
    """Returns a key of a token and all before it."""
    return crc32(f"{before} {token}".encode())


def next_token(tokens: Sequence[int]) -> int:
    """Returns the model's answer: it depends on every token before it."""
    return reduce(after, tokens, 0) % VOCAB


class Remembering:
    """Implements `inputs.Executor`: its draws follow from the tokens that the blocks hold of the sequence,
    and from nothing else. To store an even position clears the odd one after it, as the kernels do."""

    def __init__(self) -> None:
        self.cache: dict[tuple[int, int], int] = {}
        self.most_rows = 0

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        assert sampling is not None
        starts, tables = inputs.sequence_starts.tolist(), inputs.block_tables.tolist()
        self.most_rows = max(self.most_rows, starts[-1])
        made: dict[int, tuple[list[int], int]] = {}
        for table, (first, end) in zip(tables, pairwise(starts), strict=True):
            for row in range(first, end):
                position = int(inputs.positions[row])
                before = 0 if position == 0 else self.cache.get(_place(table, position - 1), -1)
                self.cache[_place(table, position)] = after(before, int(inputs.tokens[row]))
                if position % 2 == 0:
                    self.cache[_place(table, position + 1)] = -1
                made[row] = table, position
        self.drawn = [self._read(*made[row]) for row in inputs.logit_rows.tolist()]
        return 0

    def _read(self, table: list[int], position: int) -> int:
        """Returns the token of a sequence, once all rows of the batch are stored: a missing position changes
        the token."""
        found = [self.cache[_place(table, at)] for at in range(position + 1)]
        return VOCAB if -1 in found else found[-1] % VOCAB

    def give_masks(self, ticket: int, masks: Any) -> None:
        """Does nothing: there are no masks."""

    def wait(self, _ticket: int) -> StepOutput:
        none = np.empty(0, np.float32)
        return StepOutput(np.array(self.drawn, np.int32), none, none.astype(np.int32), none, None, 0.0)

    def close(self) -> None:
        """Does nothing: there is nothing to free."""


def _place(table: Sequence[int], position: int) -> tuple[int, int]:
    block = position // SIZE
    return (table[block] if block < len(table) else -1), position % SIZE


def asked(name: str, prompt: list[int], tokens: int, guesses: int, salt: str = "") -> Request:
    """A request that may have so many draft tokens."""
    request = SampledRequest(name, prompt, tokens, cache_salt=salt, sampling=TokenSampling(), seed=0)
    request.drafter = RequestDrafter([], guesses, draft_cost=0.1)
    return request


def drawn_of(batch: Batch, rng: random.Random) -> list[list[int]]:
    """Returns the tokens that the model draws of each chunk; now and then another one, as at a
    temperature."""
    found = []
    for chunk in batch.chunks:
        if not chunk.samples:
            found.append([])
            continue
        tokens, drawn = list(chunk.request.tokens), []
        for draft in [*chunk.drafts, None]:
            drawn.append(next_token(tokens) if rng.random() < 0.9 else rng.randrange(VOCAB))
            tokens.append(-1 if draft is None else draft)
        found.append(list(chunk.verified(drawn)))
    return found


@settings(deadline=None)
@given(
    seed=st.integers(0, 10_000),
    blocks=st.sampled_from([14, 24, 60]),
    stages=st.sampled_from([1, 3]),
    rows=st.sampled_from([5, 16, 48]),
    prefixes=st.booleans(),
)
def test_guesses_are_what_the_model_would_answer(
    seed: int, blocks: int, stages: int, rows: int, prefixes: bool
) -> None:
    """Requests that begin alike come and go, are preempted and aborted, in several batches at a time."""
    rng, executor = random.Random(seed), Remembering()
    model = DraftModel(executor, SIZE, rows)
    limits = config(
        num_blocks=blocks,
        block_size=SIZE,
        max_num_batched_tokens=max(rows, 8),
        max_model_len=48,
        prefix_cache=prefixes,
        stages=stages,
    )
    scheduler = Scheduler(limits, together=model)
    begin = [rng.randrange(VOCAB) for _ in range(16)]
    flying: deque[Batch] = deque()
    left, guesses, number = 30, 0, 0
    while left or scheduler.has_unfinished():
        while left and rng.random() < 0.3:
            left, number = left - 1, number + 1
            prompt = begin[: rng.randrange(17)] + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))]
            scheduler.add(
                asked(str(number), prompt, rng.randint(2, 20), rng.randint(1, 6), rng.choice("  x"))
            )
        if rng.random() < 0.02 and scheduler.request_ids:
            scheduler.abort(rng.choice(scheduler.request_ids))
        batch = scheduler.schedule() if len(flying) < limits.most_in_flight else None
        if batch is not None:
            for chunk in batch.chunks:
                tokens = list(chunk.request.tokens)
                for draft in chunk.drafts:
                    assert draft == next_token(tokens), (chunk.request.id, chunk.start)
                    tokens.append(draft)
                guesses += len(chunk.drafts)
            flying.append(batch)
        if flying and (batch is None or rng.random() < 0.5):
            oldest = flying.popleft()
            scheduler.update(oldest, drawn_of(oldest, rng))
            scheduler.check()
    assert guesses > 0
    assert executor.most_rows <= rows


def test_what_is_right_behind_a_gap_is_left_alone() -> None:
    """The third block is another request's, which has computed it; the second one has not been computed
    yet."""
    cache, size = DraftCache(SIZE), SIZE
    tokens = list(range(14))
    owner, other = Request("a", tokens, 9), Request("b", tokens, 9)
    owner.block_ids, other.block_ids = [1, 2, 3, 4], [1, 5, 3, 6]
    owner.num_done = other.num_done = 13
    has, found = DraftProgress(), DraftProgress()
    cache.follow(owner, has)
    cache.note(owner, has, [], 14)
    cache.follow(other, found)
    assert (found.right, found.until) == (size, 2 * size)
    cache.note(other, found, [], 2 * size)
    cache.follow(other, found)
    assert (found.right, found.until) == (3 * size, 14)


def test_the_last_known_token_is_computed_again() -> None:
    """The next draft follows from it, although its position was computed as a draft that was accepted."""
    cache, request, has = DraftCache(SIZE), Request("a", [1, 2, 3, 4, 5], 9), DraftProgress()
    request.block_ids = [1, 2]
    cache.follow(request, has)
    assert (has.right, has.until) == (0, 5)
    cache.note(request, has, [6, 0], 7)
    for token, known in ((6, 5), (0, 6), (3, 7)):
        request.append(token)
        cache.follow(request, has)
        assert (has.right, has.until) == (known, known + 1)


class Deaf(Remembering):
    """An executor whose results of the last row are not numbers."""

    def wait(self, ticket: int) -> StepOutput:
        found = super().wait(ticket)
        last = len(found.tokens) - 1
        return StepOutput(*[getattr(found, n) for n in StepOutput.__slots__[:6]], overflowed=[last])


@pytest.mark.parametrize(("executor", "guessed"), [(Remembering(), 3), (Deaf(), 0)])
def test_what_is_no_number_is_no_guess(executor: Remembering, guessed: int) -> None:
    scheduler = Scheduler(config(block_size=SIZE), together=DraftModel(executor, SIZE, 32))
    scheduler.add(asked("a", [1, 2, 3], 9, 3))
    first = scheduler.schedule()
    assert first is not None
    scheduler.update(first, [[4]])
    second = scheduler.schedule()
    assert second is not None
    assert len(second.chunks[0].drafts) == guessed
