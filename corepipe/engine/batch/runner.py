"""Batches as the executor takes them, and its results: one call a batch, for all cores.

The step after the one that is being computed is queued before the scheduler asks for it: no Python runs
between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import NamedTuple

import numpy as np

from corepipe.engine.batch.arrays import (
    BlockTable,
    Ids,
    Join,
    LogitRows,
    RowLists,
    adapter_rows,
    adapters_of,
    join_tables,
    pack_prompt_scalars,
    pack_scalars,
    positions_of,
    tokens_of,
)
from corepipe.engine.batch.masks import MaskBuffer
from corepipe.engine.batch.requests import SampledRequest, announce
from corepipe.engine.batch.row_masks import fill, fill_after_drafts
from corepipe.engine.messages import Started, TokenLogprobs
from corepipe.neuron.step import AdapterKind, ChainingExecutor, Executor, StepInputs, StepOutput
from corepipe.neuron.timing.cost import StepShape
from corepipe.scheduler.request import Batch, Chunk, Request, Status

OVERFLOW = (
    "The model's logits overflowed: instead of numbers it computed infinity or NaN, of which no token can be "
    "drawn. Its weights do not fit the number format that it is served in."
)

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
    and the number of their rows whose draws can be used. value_rows: for each chunk its
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
    drafting: Mapping[int, int] = field(default_factory=dict)


class RequestFailure(NamedTuple):
    """A request that cannot go on; `kind` and `error` as in `messages.Output`."""

    request: Request
    kind: str
    error: str


class StepQueue:
    """Queues the step that the scheduler will ask for if nothing else happens, and checks whether it was the
    right one.

    The scheduler decides as it would without: a step that it does not ask for is dropped, and the positions
    that such a step has written to the cache are computed again before they are read.  `repeats` returns
    whether the next batch computes the tokens that this one draws and nothing else, as far as can be known.
    """

    def __init__(self, executor: ChainingExecutor, repeats: Callable[[Batch], bool]) -> None:
        self._executor = executor
        self._repeats = repeats
        self._queued: SubmittedStep | None = None  # with the batch before it
        self._preemptions: list[int] = []  # of the requests of that batch, so far

    def take(self, batch: Batch) -> SubmittedStep | None:
        """Returns the step that was queued for this batch; None where there is none, and the batch has to be
        submitted."""
        queued, self._queued = self._queued, None
        if queued is None:
            return None
        if not self._is_before(queued.batch.chunks, batch.chunks):
            self._executor.drop(queued.ticket)
            return None
        rows = len(batch.chunks)
        queued.batch, queued.drawn_rows = batch, [*range(rows)]
        queued.shape = StepShape.of([(chunk.start, 1) for chunk in batch.chunks], rows, 1)
        return queued if self._executor.adopt(queued.ticket) else None

    def queue(self, step: SubmittedStep) -> None:
        """Queues the step behind a submitted one, in which each sequence draws a token by its logits alone,
        if the scheduler will ask for it."""
        if not self._repeats(step.batch):
            return
        requests = [chunk.request for chunk in step.batch.chunks]
        ends = frozenset[int]().union(*(request.stop_ids for request in requests))
        following = self._executor.go_on(step.ticket, np.fromiter(ends, np.int32))
        self._preemptions = [request.num_preemptions for request in requests]
        self._queued = SubmittedStep(following, step.batch, [], {}, step.top_logprobs, step.shape)

    def _is_before(self, before: Sequence[Chunk], chunks: Sequence[Chunk]) -> bool:
        """Tells whether `chunks` compute the tokens that those before have drawn, and nothing else."""
        return len(chunks) == len(before) and all(
            chunk.request is last.request
            and chunk.start == last.start + last.count
            and chunk.count == 1
            and not chunk.drafts
            and chunk.request.num_preemptions == preemptions
            for last, preemptions, chunk in zip(before, self._preemptions, chunks, strict=True)
        )


class Runner:
    """Hands batches to one replica's executor; implements `replica.BatchRunner`.

    `on_start` gets requests before anything is computed for them: if that ends this process, it is known
    which request did. `step_queue` queues steps before the scheduler asks for them. `kinds`: of the adapters
    in the executor's slots.
    """

    def __init__(
        self,
        executor: Executor,
        vocab_size: int,
        on_start: OnStart,
        join: Join = join_tables,
        step_queue: StepQueue | None = None,
        kinds: Mapping[int, AdapterKind] | None = None,
    ) -> None:
        self._executor = executor
        self._kinds = kinds
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
        step = (self._step_queue and self._step_queue.take(batch)) or self._start(batch, states)
        if self._kinds:
            slots = [state.request.adapter for state in states]
            step.shape = step.shape._replace(adapters=adapter_rows(batch.chunks, slots, self._kinds))
        if self._step_queue is not None and all(state.draws_by_logits for state in states):
            self._step_queue.queue(step)
        return step

    def _start(self, batch: Batch, states: Sequence[RequestInputs]) -> SubmittedStep:
        """Makes the arrays of a batch, and hands them to the executor."""
        chunks = batch.chunks
        announce([state.request for state in states], self._on_start)
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
            adapters=adapters_of([state.request.adapter for state in states], starts),
        )
        sampling = logits.sampling()
        ticket = self._executor.submit(inputs, sampling)
        each = max(drafting.values()) if drafting else 1
        masked = self._give_masks(ticket, states, chunks, drafting) if logits.masked else ((), ())
        shape = StepShape.of([(c.start, c.count) for c in chunks], len(logits.rows), each)
        reported = sampling.top_logprobs
        return SubmittedStep(
            ticket, batch, drawn_rows, prompt_rows, reported, shape, *masked, drafting=drafting
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

    def wait(self, step: SubmittedStep) -> StepResult:
        """Waits for a batch; batches are waited for in the order in which they were submitted."""
        output = self._executor.wait(step.ticket)
        drawn = output.tokens.tolist()
        tokens = [[] if row is None else [drawn[row]] for row in step.drawn_rows]
        if step.drafting:
            _add_verified(tokens, step, drawn, output.overflowed)
        failures = _overflows(step, output)
        if step.constrained:
            failures += _take_tokens(step, tokens, {failure.request for failure in failures})
        return StepResult(step, output, tokens, failures)


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
    tokens: list[list[int]], step: SubmittedStep, drawn: Sequence[int], overflowed: Collection[int]
) -> None:
    """Gives chunks with drafts all accepted tokens. A draft's row that has no numbers, or no mask, does not
    count, nor do those behind it: it is computed again once its token is needed."""
    for at, usable in step.drafting.items():
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
        if request.status is Status.FINISHED or request in failed or request.constraint is None:
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
