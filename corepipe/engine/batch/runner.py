"""Batches as the executor takes them, and its results: one call a batch, for all cores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import NamedTuple

import numpy as np

from corepipe.engine.batch.block_table import BlockTable, join_tables
from corepipe.engine.batch.masks import MaskBuffer
from corepipe.engine.batch.queued_step import QueuedStep, StepQueue
from corepipe.engine.batch.requests import SampledRequest
from corepipe.engine.batch.row_masks import fill, fill_after_drafts
from corepipe.engine.batch.sampling import Ids, LogitRows, RowLists, pack_prompt_scalars, pack_scalars
from corepipe.engine.messages import Started, TokenLogprobs
from corepipe.neuron.inputs import Executor, StepInputs, StepOutput
from corepipe.neuron.timing.cost import StepShape
from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.request import Batch, Chunk, Request, Status

OVERFLOW = (
    "The model's logits overflowed: instead of numbers it computed infinity or NaN, of which no token can be "
    "drawn. Its weights do not fit the number format that it is served in."
)

Join = Callable[[Sequence[bytearray]], Ids]
"""Joins the tables of a batch's requests, as the executor takes them."""

OnStart = Callable[[list[Started]], None]


@dataclass(slots=True, eq=False)
class RequestInputs:
    """The inputs that the runner keeps of a request: its packed parameters, its blocks, the lists of its
    parameters.

    `prompt_scalars` is set where the prompt's logprobs are requested; `prompt_known` is the length of the
    prompt for whose tokens they have been computed (the first has none).
    """

    request: SampledRequest
    scalars: bytes
    lists: RowLists | None
    prompt_scalars: bytes | None
    prompt_known: int = 1
    blocks: BlockTable = field(default_factory=BlockTable)
    started: bool = False

    @property
    def draws_by_logits(self) -> bool:
        """True where its tokens depend on nothing but the logits of their rows, and no prompt logprobs are
        requested."""
        return self.lists is None and self.prompt_scalars is None and not self.request.masked


@dataclass(slots=True)  # not frozen, for speed: one is made for each step
class SubmittedStep:
    """A batch that has been submitted to the executor.

    drawn_rows: for each chunk the logit row that draws its token, None where it draws none; the rows of its
    draft come after it. prompt_rows: logit rows that report on a prompt, by index of the chunk. top_logprobs
    [R]: the number of alternatives to report (-1: no logprob at all). constrained: the chunks that draw under
    a mask; mask_seconds: the time that each of their masks took to fill. drafting: the chunks with drafts,
    and the number of their rows whose draws can be used; None: there are none. value_rows: for each chunk its
    rows of `StepOutput.values`, where nothing is generated.
    """

    ticket: int
    batch: Batch
    drawn_rows: list[int | None]
    prompt_rows: dict[int, range]
    top_logprobs: Ids
    shape: StepShape
    constrained: Sequence[int] = ()
    mask_seconds: Sequence[float] = ()
    value_rows: Sequence[range] = ()
    drafting: Mapping[int, int] | None = None


class RequestFailure(NamedTuple):
    """A request that cannot go on; `kind` and `error` as in `messages.Output`."""

    request: Request
    kind: str
    error: str


class Runner:
    """Hands batches to one replica's executor; implements `replica.BatchRunner`.

    `on_start` gets requests before anything is computed for them: if that ends this process, it is known
    which request did. `step_queue` queues steps before the scheduler asks for them.
    """

    def __init__(
        self,
        executor: Executor,
        vocab_size: int,
        on_start: OnStart,
        join: Join = join_tables,
        step_queue: StepQueue | None = None,
    ) -> None:
        self._executor = executor
        self._masks = MaskBuffer(vocab_size)
        self._on_start = on_start
        self._join = join
        self._step_queue = step_queue
        self._requests: dict[str, RequestInputs] = {}

    def add(self, request: Request) -> None:
        """Takes on a request before its first batch."""
        assert isinstance(request, SampledRequest)
        params, top = request.sampling, request.sampling.prompt_logprobs
        self._requests[request.id] = RequestInputs(
            request,
            pack_scalars(params, request.seed),
            RowLists.of(request, params, request.bad_words, masked=request.masked),
            None if top is None else pack_prompt_scalars(top),
        )

    def remove(self, request_id: str) -> None:
        """Forgets a request that has ended; batches in flight may still hold it."""
        del self._requests[request_id]

    def submit(self, batch: Batch) -> SubmittedStep:
        """Starts a batch and does not wait."""
        states = [self._requests[chunk.request.id] for chunk in batch.chunks]
        if self._step_queue is None:
            return self._start(batch, states)
        foreseen = self._step_queue.take(batch)
        step = self._start(batch, states) if foreseen is None else _taken(foreseen, batch)
        if all(state.draws_by_logits for state in states):
            self._step_queue.queue(step.ticket, batch, step.top_logprobs)
        return step

    def _start(self, batch: Batch, states: Sequence[RequestInputs]) -> SubmittedStep:
        """Makes the arrays of a batch, and hands them to the executor."""
        chunks = batch.chunks
        self._announce_started(states)
        starts = np.zeros(len(chunks) + 1, np.int32)
        np.cumsum([chunk.count for chunk in chunks], out=starts[1:])
        logits = LogitRows()
        drawn_rows, prompt_rows, drafting = _add_logit_rows(logits, states, chunks, starts.tolist())
        inputs = StepInputs(
            tokens=tokens_of(chunks),
            positions=positions_of(chunks, starts),
            sequence_starts=starts,
            block_tables=self._join([state.blocks.follow(state.request) for state in states]),
            logit_rows=np.array(logits.rows, np.int32),
        )
        sampling = logits.sampling()
        ticket = self._executor.submit(inputs, sampling)
        each = max(drafting.values()) if drafting else 1
        masked = self._give_masks(ticket, states, chunks, drafting) if logits.masked else ((), ())
        shape = StepShape.of([(c.start, c.count) for c in chunks], len(logits.rows), each)
        top = sampling.top_logprobs
        return SubmittedStep(
            ticket, batch, drawn_rows, prompt_rows, top, shape, *masked, drafting=drafting or None
        )

    def _give_masks(
        self, ticket: int, states: Sequence[RequestInputs], chunks: Sequence[Chunk], drafting: dict[int, int]
    ) -> tuple[Sequence[int], Sequence[float]]:
        """Fills the masks of a batch while it is computed; returns the chunks that have one, and the seconds
        that each took. Draft rows for which there can be no mask are removed from `drafting`."""
        found = [at for at, chunk in enumerate(chunks) if chunk.samples and states[at].request.masked]
        masks = self._masks.rows(sum([drafting.get(at, 1) for at in found]))
        ended, first = [perf_counter()], 0
        try:
            for at in found:
                fill(masks[first], states[at].request)
                first += 1
                if at in drafting:
                    rows = masks[first : first + len(chunks[at].drafts)]
                    drafting[at] = 1 + fill_after_drafts(rows, states[at].request, chunks[at].drafts)
                    first += len(rows)
                ended.append(perf_counter())
        finally:  # after an error as well, as the executor waits for the masks
            self._executor.give_masks(ticket, masks)
        return found, [end - began for began, end in pairwise(ended)]

    def _announce_started(self, states: Sequence[RequestInputs]) -> None:
        fresh = [state for state in states if not state.started]
        if fresh:
            self._on_start([Started(state.request.id, state.request.seed) for state in fresh])
            for state in fresh:
                state.started = True

    def wait(self, step: SubmittedStep) -> StepResult:
        """Waits for a batch; batches are waited for in the order in which they were submitted."""
        output = self._executor.wait(step.ticket)
        drawn = output.tokens.tolist()
        tokens = [[] if row is None else [drawn[row]] for row in step.drawn_rows]
        if step.drafting:
            _add_verified(tokens, step, step.drafting, drawn, output.overflowed)
        failures = _overflows(step, output)
        if step.constrained:
            failures += _take_tokens(step, tokens, {failure.request for failure in failures})
        return StepResult(step, output, tokens, failures)


def _taken(foreseen: QueuedStep, batch: Batch) -> SubmittedStep:
    """Returns the submitted step of a step that was queued: one row of each request, which draws."""
    rows = len(batch.chunks)
    shape = StepShape.of([(chunk.start, 1) for chunk in batch.chunks], rows, 1)
    return SubmittedStep(foreseen.ticket, batch, [*range(rows)], {}, foreseen.top_logprobs, shape)


@dataclass(slots=True)  # not frozen, for speed: one is made for each step
class StepResult:
    """The result of a batch. tokens: for each chunk the accepted tokens of its draws. failures: at most one a
    request. of_passes: for each chunk the logprobs of its tokens, where not all are of this output."""

    step: SubmittedStep
    output: StepOutput
    tokens: Sequence[Sequence[int]]
    failures: Sequence[RequestFailure] = ()
    of_passes: Sequence[list[TokenLogprobs]] | None = None

    @property
    def has_logprobs(self) -> bool:
        """True where the logprob of any row was requested."""
        return bool((self.step.top_logprobs >= 0).any())

    def logprobs(self, chunk: int) -> list[TokenLogprobs]:
        """Returns the logprobs of the chunk's tokens; empty where none was drawn or requested."""
        if self.of_passes is not None:
            return self.of_passes[chunk]
        row = self.step.drawn_rows[chunk]
        if row is None or self.step.top_logprobs[row] < 0:
            return []
        return [self._report(row + at) for at in range(len(self.tokens[chunk]))]

    def prompt_logprobs(self, chunk: int) -> list[TokenLogprobs]:
        """Returns the logprobs of the prompt tokens that follow this chunk's rows; empty where not
        requested."""
        return [self._report(row) for row in self.step.prompt_rows.get(chunk, ())]

    def _report(self, row: int) -> TokenLogprobs:
        output, count = self.output, int(self.step.top_logprobs[row])
        ids, values = output.top_ids[row, :count].tolist(), output.top_logprobs[row, :count].tolist()
        top = [(token, value) for token, value in zip(ids, values, strict=True) if token >= 0]
        rank = int(output.ranks[row]) if len(output.ranks) else 0
        return TokenLogprobs(int(output.tokens[row]), float(output.logprobs[row]), top, rank)


def _overflows(step: SubmittedStep, output: StepOutput) -> list[RequestFailure]:
    """Returns failures for the requests whose logits are not all numbers."""
    rows = set(output.overflowed)
    if not rows:
        return []
    return [
        RequestFailure(chunk.request, "overflow", OVERFLOW)
        for index, (chunk, drawn) in enumerate(zip(step.batch.chunks, step.drawn_rows, strict=True))
        if drawn in rows or not rows.isdisjoint(step.prompt_rows.get(index, ()))
    ]


def _add_verified(
    tokens: list[list[int]],
    step: SubmittedStep,
    drafting: Mapping[int, int],
    drawn: Sequence[int],
    overflowed: Collection[int],
) -> None:
    """Gives chunks with drafts all accepted tokens. A draft's row that has no numbers, or no mask, does not
    count, nor do those behind it: it is computed again once its token is needed."""
    for at, usable in drafting.items():
        row = step.drawn_rows[at]
        assert row is not None
        end = next((each for each in range(row + 1, row + usable) if each in overflowed), row + usable)
        tokens[at] = list(step.batch.chunks[at].verified(drawn[row:end]))


def _take_tokens(
    step: SubmittedStep, tokens: list[list[int]], failed: Collection[Request]
) -> list[RequestFailure]:
    """Passes the drawn tokens to the constraints; returns failures for the requests that cannot go on,
    besides those that have `failed`."""
    failures = []
    for at in step.constrained:
        request = step.batch.chunks[at].request
        assert isinstance(request, SampledRequest)
        if request.status is Status.FINISHED or request in failed:
            continue
        if request.constraint is None:
            continue
        for number, token in enumerate(tokens[at], 1):
            request.constraint.take(token)
            ends = token in request.stop_ids and request.num_generated + number >= request.min_tokens
            if request.constraint.finished or ends:
                del tokens[at][number:]
                break
        request.complete = request.constraint.finished
        if request.constraint.error is not None:
            kind = "contradiction" if request.constraint.contradicted else "constraint"
            failures.append(RequestFailure(request, kind, request.constraint.error))
    return failures


def _add_logit_rows(
    logits: LogitRows, states: Sequence[RequestInputs], chunks: Sequence[Chunk], starts: Sequence[int]
) -> tuple[list[int | None], dict[int, range], dict[int, int]]:
    """Adds the rows that draw or report to `logits`; `SubmittedStep` says what is returned."""
    drawn_rows: list[int | None] = []
    prompt_rows: dict[int, range] = {}
    drafting: dict[int, int] = {}
    for index, (state, chunk) in enumerate(zip(states, chunks, strict=True)):
        if state.prompt_scalars is not None:
            prompt_rows[index] = _add_prompt_rows(logits, state, state.prompt_scalars, chunk, starts[index])
        drawn_rows.append(len(logits.rows) if chunk.samples else None)
        if chunk.drafts:
            _add_draft_rows(logits, state, chunk, starts[index])
            drafting[index] = len(chunk.drafts) + 1
        elif chunk.samples:
            logits.draw(starts[index + 1] - 1, state.scalars, chunk.start + chunk.count, state.lists)
            if state.request.masked:
                logits.mask()
    return drawn_rows, prompt_rows, drafting


def _add_draft_rows(logits: LogitRows, state: RequestInputs, chunk: Chunk, first_row: int) -> None:
    """Adds the rows of the last known token and of each draft token; each is drawn as if those before it were
    known."""
    lists = state.lists
    last = chunk.count - len(chunk.drafts) - 1
    for at in range(len(chunk.drafts) + 1):
        after = lists and lists.after(chunk.drafts[:at])
        logits.draw(first_row + last + at, state.scalars, chunk.start + last + at + 1, after)
        if state.request.masked:
            logits.mask()


def _add_prompt_rows(
    logits: LogitRows, state: RequestInputs, scalars: bytes, chunk: Chunk, first_row: int
) -> range:
    """Adds the rows whose next token is a prompt token not yet reported (a preempted prompt runs twice)."""
    prompt = state.request.prompt
    first, end = max(chunk.start + 1, state.prompt_known), min(chunk.start + chunk.count + 1, len(prompt))
    before = len(logits.rows)
    for position in range(first, end):
        logits.report(first_row + position - 1 - chunk.start, scalars, prompt, position)
    state.prompt_known = max(state.prompt_known, end)
    return range(before, len(logits.rows))


def tokens_of(chunks: Sequence[Chunk]) -> Ids:
    """Returns the token ids of all rows [M]."""
    flat: list[int] = []
    for chunk in chunks:
        if chunk.count == 1:
            flat.append(chunk.request.tokens[chunk.start])
        else:
            flat += chunk.request.tokens[chunk.start : chunk.start + chunk.count]
            flat += chunk.drafts
    return np.array(flat, np.int32)


def positions_of(chunks: Sequence[Chunk], starts: Ids) -> Ids:
    """Returns the positions of all rows [M], from the first row [S + 1] of each chunk."""
    if len(chunks) == 1:
        return np.arange(chunks[0].start, chunks[0].start + chunks[0].count, dtype=np.int32)
    offsets = np.array([chunk.start for chunk in chunks], np.int32) - starts[:-1]
    return np.arange(starts[-1], dtype=np.int32) + np.repeat(offsets, np.diff(starts))


def joining(limits: SchedulerConfig) -> Join:
    """Returns the join of tables for a scheduler of these limits: where blocks are given back, tables have
    empty places, and a column for each group."""
    if limits.windows == (None,) and limits.state_span is None:
        return join_tables
    return partial(join_groups, groups=limits.tables)


def join_groups(tables: Sequence[bytearray], groups: int) -> Ids:
    """Joins tables with rows of a block for each group to [groups * S, B]; 0 where a place is empty."""
    rows = join_tables(tables).reshape(len(tables), -1, groups)
    return np.maximum(rows.transpose(2, 0, 1).reshape(groups * len(tables), -1), 0, order="C")
