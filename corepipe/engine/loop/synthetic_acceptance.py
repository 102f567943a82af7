"""Batches of which it is assumed how many guesses are right: the host computes their tokens one by one.

A guess that is right is the token that the model draws, and nobody has it before it is drawn.  So what the
device is timed to compute at once takes the host a pass for each of the tokens that stand.  They are drawn
as ever; what is assumed is how soon they come.
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
    """What decides the time of a batch of these on the device, with a row of logits for each of their drafts
    besides `logit_rows`."""
    drafts = [len(chunk.drafts) for chunk in chunks]
    each = 1 + max(drafts, default=0)
    return StepShape.of([(c.start, c.count) for c in chunks], logit_rows + sum(drafts), each)


class SyntheticAcceptanceRunner:
    """Implements `replica.BatchRunner` on one that computes tokens, whose batches have no drafts."""

    def __init__(self, runner: BatchRunner) -> None:
        self._runner = runner

    def add(self, request: Request) -> None:
        self._runner.add(request)

    def remove(self, request_id: str) -> None:
        self._runner.remove(request_id)

    def submit(self, batch: Batch) -> SubmittedStep:
        """Starts the pass that all chunks are in."""
        chunks = batch.chunks
        known = tuple([replace(c, count=c.count - len(c.drafts), drafts=()) for c in chunks])
        step = self._runner.submit(Batch(batch.number, known))
        return replace(step, batch=batch, shape=shape_of(chunks, step.shape.logit_rows))

    def wait(self, step: SubmittedStep) -> StepResult:
        """Waits for it, and makes the others."""
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
    """What has come of the passes of a batch, by chunk.  Tokens are their requests' from pass to pass, and
    given back at the end: it is the scheduler that takes them for good.

    ended: chunks that no further token is drawn of.
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
        """Those that follow this one, in which all chunks were."""
        chunks, failed = first.step.batch.chunks, {failure.request for failure in first.failures}
        tokens = [list(drawn) for drawn in first.tokens]
        asked = first.has_logprobs
        logprobs = [first.logprobs(at) if asked else [] for at in range(len(chunks))]
        over = {at for at, chunk in enumerate(chunks) if _is_over(chunk.request, tokens[at], failed)}
        seconds, masks = first.output.seconds, list(first.step.mask_seconds)
        return cls(first, tokens, logprobs, over, seconds, masks, [0] * len(chunks))

    def going(self) -> list[int]:
        """The chunks of which another token stands."""
        return [
            at
            for at, chunk in enumerate(self.first.step.batch.chunks)
            if at not in self.ended and len(self.tokens[at]) <= chunk.drafts.count(RIGHT)
        ]

    def next(self, at: int) -> Chunk:
        """What draws it."""
        chunk = self.first.step.batch.chunks[at]
        chunk.request.append(self.tokens[at][-1])
        self.lent[at] += 1
        return Chunk(chunk.request, chunk.request.num_tokens - 1, 1, samples=True)

    def take(self, going: Sequence[int], result: StepResult) -> None:
        """What has come of these.  Who cannot go on finds that out with the next batch, when it is known to
        have what it has got so far."""
        failed = {failure.request for failure in result.failures}
        asked = result.has_logprobs
        for number, at in enumerate(going):
            request, drawn = result.step.batch.chunks[number].request, result.tokens[number]
            if request not in failed:
                self.tokens[at] += drawn
                self.logprobs[at] += result.logprobs(number) if asked else []
            if _is_over(request, drawn, failed):
                self.ended.add(at)
        self.seconds += result.output.seconds
        self.mask_seconds += result.step.mask_seconds

    def end(self) -> None:
        """Gives tokens back."""
        for chunk, lent in zip(self.first.step.batch.chunks, self.lent, strict=True):
            chunk.request.retract(lent)

    def result(self) -> StepResult:
        """Of the batch; its guesses are known now."""
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
    """Whether nothing is drawn behind these, the last tokens that it has got."""
    assert isinstance(request, SampledRequest)
    if request.status is Status.FINISHED or request in failed or request.complete or not drawn:
        return True
    return drawn[-1] in request.stop_ids and request.num_generated + 1 >= request.min_tokens
