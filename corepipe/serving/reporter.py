"""What a request's owner is told: the Outputs of one replica, and the times that go with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from corepipe.scheduler.request import Batch, FinishReason, Request, TokenEvent
from corepipe.serving.device_time import DeviceTime
from corepipe.serving.messages import Output, TokenLogprobs
from corepipe.serving.runner import StepResult


@dataclass(slots=True, eq=False)
class _Record:
    """Times in seconds of the driver's clock; None until it happened."""

    request: Request
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float = 0.0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)


class Reporter:
    """Makes Outputs of events.  It is asked only after the next batch has been submitted."""

    def __init__(self, device: DeviceTime) -> None:
        self._device = device
        self._records: dict[str, _Record] = {}
        self._unscheduled: set[str] = set()

    def add(self, request: Request) -> None:
        self._records[request.id] = _Record(request)
        self._unscheduled.add(request.id)

    def schedule(self, batch: Batch, now: float) -> None:
        """Notes which requests have left the queue."""
        if self._unscheduled:
            for chunk in batch.chunks:
                if chunk.request.id in self._unscheduled:
                    self._unscheduled.remove(chunk.request.id)
                    self._records[chunk.request.id].scheduled = now

    def outputs(self, result: StepResult, events: Sequence[TokenEvent], now: float) -> list[Output]:
        """The news of a batch that was complete at `now`."""
        logprobs = self._logprobs(result)
        return [
            self._output(event, logprobs.get(event.request.id, []), now)
            for event in events
            if event.token is not None or event.finish_reason is not None
        ]

    def end(self, request: Request, reason: FinishReason) -> Output:
        """The last news of a request that ends without a token."""
        return self._last(request, Output(request.id, finish_reason=reason.value))

    def _output(self, event: TokenEvent, logprobs: list[TokenLogprobs], now: float) -> Output:
        request = event.request
        record = self._records[request.id]
        output = Output(request.id, [] if event.token is None else [event.token], logprobs)
        if event.token is not None:
            record.last_token = now
            if record.first_token is None:
                record.first_token = now
                prompt_logprobs, cached = record.prompt_logprobs, request.num_cached
                output = replace(output, prompt_logprobs=prompt_logprobs, cached=cached)
        if event.finish_reason is not None:
            output = self._last(request, replace(output, finish_reason=event.finish_reason.value))
        return output

    def _last(self, request: Request, output: Output) -> Output:
        """Adds the times of a request that has ended, and forgets it."""
        self._unscheduled.discard(request.id)
        record = self._records.pop(request.id)
        scheduled, first = record.scheduled, record.first_token
        return replace(
            output,
            device=self._device.finish(request),
            queue_seconds=0.0 if scheduled is None else scheduled - request.arrival,
            prefill_seconds=0.0 if first is None or scheduled is None else first - scheduled,
            decode_seconds=0.0 if first is None else record.last_token - first,
            preemptions=request.num_preemptions,
        )

    def _logprobs(self, result: StepResult) -> dict[str, list[TokenLogprobs]]:
        """The drawn tokens' logprobs by request; those of prompts are kept until the first token."""
        if not result.has_logprobs:
            return {}
        drawn: dict[str, list[TokenLogprobs]] = {}
        for index, chunk in enumerate(result.step.batch.chunks):
            record = self._records.get(chunk.request.id)
            if record is not None and record.request is chunk.request:
                record.prompt_logprobs += result.prompt_logprobs(index)
                drawn[chunk.request.id] = result.logprobs(index)
        return drawn
