"""Drafts of a smaller model: the tokens that it would generate itself, the most likely one each time.

All requests that want drafts get them from the same batches: one that computes the tokens that the draft
model has not computed yet, and another for each further draft token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from corepipe.engine.batch.arrays import LogitRows, join_tables, pack_scalars
from corepipe.engine.drafters.draft_cache import DraftCache, DraftProgress
from corepipe.engine.drafters.speculation import RequestDrafter
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.neuron.step import Executor, SamplingBatch, StepInputs
from corepipe.scheduler.request import Request

GREEDY = pack_scalars(TokenSampling(temperature=0.0), seed=0)


@dataclass(slots=True, eq=False)
class _DraftRequest:
    """A request that wants `most` draft tokens; rows: the number of its positions that are computed first."""

    request: Request
    has: DraftProgress
    most: int
    rows: int = 0
    drafted: list[int] = field(default_factory=list)

    @property
    def catches_up(self) -> bool:
        """True where the draft model knows all tokens of the request once its first rows are computed."""
        return self.has.right + self.rows == self.request.num_tokens

    @property
    def end(self) -> int:
        """End of the positions that are computed, with as many draft tokens as the request wants."""
        return self.has.right + self.rows + (self.most - 1 if self.catches_up else 0)


class DraftModel:
    """Implements `drafts.BatchDrafter` for requests whose Drafter is a `RequestDrafter`.

    executor: the draft model's, with blocks of `block_size` positions of the same numbers as the served
    model's; most_rows: the most rows of one of its batches.
    """

    def __init__(self, executor: Executor, block_size: int, most_rows: int) -> None:
        self._executor = executor
        self._cache = DraftCache(block_size)
        self._most_rows = most_rows
        self._sampling: dict[int, SamplingBatch] = {}

    def depth(self, request: Request, most: int) -> int:
        return _speculation(request).depth_together(request, most)

    def propose(self, asked: Sequence[tuple[Request, int]]) -> Sequence[Sequence[int]]:
        """Drafts for all requests. Those that have more left to compute than a batch holds get no draft, and
        a part of it is computed; those that share blocks with another request that computes them wait for
        that."""
        drafting = [_DraftRequest(request, _speculation(request).followed, most) for request, most in asked]
        active = self._catch_up(drafting)
        while active := [each for each in active if len(each.drafted) < each.most]:
            active = self._draft_next(active, [each.drafted[-1:] for each in active])
        for each in drafting:
            end = each.has.right + each.rows + max(0, len(each.drafted) - 1)
            self._cache.note(each.request, each.has, each.drafted, end)
        return [_speculation(each.request).take(each.request, each.drafted) for each in drafting]

    def _catch_up(self, drafting: Sequence[_DraftRequest]) -> list[_DraftRequest]:
        """Computes the missing positions, as far as a batch holds them, requests with the fewest first;
        returns the requests that have none missing, with a draft token."""
        for each in drafting:
            self._cache.follow(each.request, each.has)
        left, computed, written = self._most_rows, [], set[int]()
        for each in sorted(drafting, key=lambda one: one.has.until - one.has.right):
            each.rows = min(each.has.until - each.has.right, left)
            blocks = self._cache.blocks(each.request, each.has, each.end)
            if each.rows == 0 or not written.isdisjoint(blocks):
                each.rows = 0
                continue
            written.update(blocks)
            left -= each.rows
            computed.append(each)
        rows = [each.request.tokens[each.has.right : each.has.right + each.rows] for each in computed]
        return self._draft_next(computed, rows)

    def _draft_next(
        self, drafting: Sequence[_DraftRequest], tokens: Sequence[Sequence[int]]
    ) -> list[_DraftRequest]:
        """Computes these tokens of each request, and drafts one more token for those that have none missing
        then; returns the requests that got one."""
        counts = np.array([len(each) for each in tokens], np.int32)
        starts = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        first = np.array([_position(each) for each in drafting], np.int32)
        complete = [at for at, each in enumerate(drafting) if each.drafted or each.catches_up]
        inputs = StepInputs(
            tokens=np.array([token for each in tokens for token in each], np.int32),
            positions=np.arange(starts[-1], dtype=np.int32) + np.repeat(first - starts[:-1], counts),
            sequence_starts=starts,
            block_tables=join_tables([each.has.blocks.follow(each.request) for each in drafting]),
            logit_rows=starts[1:][complete] - 1,
        )
        output = self._executor.wait(self._executor.submit(inputs, self._greedy(len(complete))))
        found = []
        for row, (at, token) in enumerate(zip(complete, output.tokens.tolist(), strict=True)):
            if row not in output.overflowed:
                drafting[at].drafted.append(token)
                found.append(drafting[at])
        return found

    def _greedy(self, rows: int) -> SamplingBatch:
        """Returns the parameters for the most likely tokens of so many rows."""
        if rows not in self._sampling:
            wanted = LogitRows()
            for row in range(rows):
                wanted.draw(row, GREEDY, 0, None)
            self._sampling[rows] = wanted.sampling()
        return self._sampling[rows]


def _position(each: _DraftRequest) -> int:
    """Returns the position of the first token of the request that is computed next."""
    return each.request.num_tokens + len(each.drafted) - 1 if each.drafted else each.has.right


def _speculation(request: Request) -> RequestDrafter:
    assert isinstance(request.drafter, RequestDrafter)
    return request.drafter
