"""Batches with an assumed acceptance of drafts: the host computes their tokens one by one.

A draft token that is accepted is the token that the model draws, which is unknown before it is drawn. So a
batch that the device is timed to compute at once takes the host a pass for each of the accepted tokens. They
are drawn as always; only how soon they come is assumed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from corepipe.engine.batch.requests import SampledRequest
from corepipe.engine.batch.runner import StepResult, SubmittedStep
from corepipe.engine.drafters.synthetic import RIGHT, WRONG
from corepipe.engine.loop.replica import BatchRunner
from corepipe.engine.messages import TokenLogprobs
from corepipe.neuron.step import StepShape
from corepipe.scheduler.request import Batch, Chunk, Request, Status


def shape_of(chunks: Sequence[Chunk], logit_rows: int) -> StepShape:
    """Returns the shape that decides the time of a batch of these chunks on the device, with a row of logits
    for each of their draft tokens besides `logit_rows`."""
    drafts = [len(chunk.drafts) for chunk in chunks if chunk.drafts]
    rows = sum([chunk.count for chunk in chunks])
    if rows == logit_rows == len(chunks):
        return StepShape.decoding(rows, rows + sum([chunk.start for chunk in chunks]))
    each = 1 + max(drafts, default=0)
    return StepShape.of([(c.start, c.count) for c in chunks], logit_rows + sum(drafts), each)


class SyntheticAcceptanceRunner:
    """Implements `replica.BatchRunner` on a runner that computes tokens, whose batches have no drafts."""

    def __init__(self, runner: BatchRunner) -> None:
        self._runner = runner

    def add(self, request: Request) -> None:
        self._runner.add(request)

    def remove(self, request_id: str) -> None:
        self._runner.remove(request_id)

    def submit(self, batch: Batch) -> SubmittedStep:
        """Starts the first pass, which has all chunks."""
        chunks = batch.chunks
        known = tuple([replace(c, count=c.count - len(c.drafts), drafts=()) for c in chunks])
        step = self._runner.submit(Batch(batch.number, known))
        return replace(step, batch=batch, shape=shape_of(chunks, step.shape.logit_rows))

    def wait(self, step: SubmittedStep) -> StepResult:
        """Waits for the first pass, and runs the others."""
        result = self._runner.wait(step)
        if not any(chunk.drafts for chunk in step.batch.chunks):
            return result
        passes = _Passes.after(result)
        try:
            while going := passes.going():
                chunks = tuple(passes.next(at) for at in going)
                passes.take(going, self._runner.wait(self._runner.submit(Batch(step.batch.number, chunks))))
        finally:
            passes.end()
        return passes.result()


@dataclass(slots=True)
class _Passes:
    """The results of the passes of a batch, by chunk. Tokens are appended to their requests from pass to
    pass, and removed at the end: the scheduler appends them for good.

    ended: chunks of which no further token is drawn.
    """

    first: StepResult
    tokens: list[list[int]]
    logprobs: list[list[TokenLogprobs]]
    ended: set[int]
    seconds: float
    mask_seconds: list[float]
    lent: list[int] = field(default_factory=list)

    @classmethod
    def after(cls, first: StepResult) -> _Passes:
        """Begins the passes that follow the first one, which had all chunks."""
        chunks, failed = first.step.batch.chunks, {failure.request for failure in first.failures}
        tokens = [list(drawn) for drawn in first.tokens]
        reported = first.has_logprobs
        logprobs = [first.logprobs(at) if reported else [] for at in range(len(chunks))]
        over = {at for at, chunk in enumerate(chunks) if _is_over(chunk.request, tokens[at], failed)}
        seconds, masks = first.output.seconds, list(first.step.mask_seconds)
        return cls(first, tokens, logprobs, over, seconds, masks, [0] * len(chunks))

    def going(self) -> list[int]:
        """Returns the chunks of which another token is accepted."""
        return [
            at
            for at, chunk in enumerate(self.first.step.batch.chunks)
            if at not in self.ended and len(self.tokens[at]) <= chunk.drafts.count(RIGHT)
        ]

    def next(self, at: int) -> Chunk:
        """Returns the chunk that draws the next token."""
        chunk = self.first.step.batch.chunks[at]
        chunk.request.append(self.tokens[at][-1])
        self.lent[at] += 1
        return Chunk(chunk.request, chunk.request.num_tokens - 1, 1, samples=True)

    def take(self, going: Sequence[int], result: StepResult) -> None:
        """Takes the results of a pass. A request that cannot go on fails with the next batch, when its tokens
        so far are known."""
        failed = {failure.request for failure in result.failures}
        reported = result.has_logprobs
        for number, at in enumerate(going):
            request, drawn = result.step.batch.chunks[number].request, result.tokens[number]
            if request not in failed:
                self.tokens[at] += drawn
                self.logprobs[at] += result.logprobs(number) if reported else []
            if _is_over(request, drawn, failed):
                self.ended.add(at)
        self.seconds += result.output.seconds
        self.mask_seconds += result.step.mask_seconds

    def end(self) -> None:
        """Removes the appended tokens from the requests."""
        for chunk, lent in zip(self.first.step.batch.chunks, self.lent, strict=True):
            chunk.request.retract(lent)

    def result(self) -> StepResult:
        """Returns the result of the batch; its draft tokens are known now."""
        for chunk, drawn in zip(self.first.step.batch.chunks, self.tokens, strict=True):
            if chunk.drafts:
                right = drawn[:-1]
                chunk.drafts = right + [WRONG] * (len(chunk.drafts) - len(right))
        return replace(
            self.first,
            step=replace(self.first.step, mask_seconds=self.mask_seconds),
            output=replace(self.first.output, seconds=self.seconds),
            tokens=self.tokens,
            of_passes=self.logprobs,
        )


def _is_over(request: Request, drawn: Sequence[int], failed: Collection[Request]) -> bool:
    """Tells whether nothing is drawn after these, the last tokens of the request."""
    assert isinstance(request, SampledRequest)
    if request.status is Status.FINISHED or request in failed or request.complete or not drawn:
        return True
    return drawn[-1] in request.stop_ids and request.num_generated + 1 >= request.min_tokens
