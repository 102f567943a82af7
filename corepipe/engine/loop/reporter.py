"""The outputs of requests, made of the events of batches: tokens, logprobs, ends, and times on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from corepipe.engine.batch.encoding import values_of
from corepipe.engine.batch.runner import RequestFailure, StepResult
from corepipe.engine.drafters.speculation import RequestDrafter
from corepipe.engine.drafters.synthetic import SyntheticDrafter
from corepipe.engine.loop.replica import Completed
from corepipe.engine.messages import DeviceTimes, Output, Predicted, Speculated, TokenLogprobs
from corepipe.scheduler.request import Batch, Drafted, FinishReason, Request, TokenEvent

MILLISECONDS = 1e3

_NONE: Iterator[TokenLogprobs] = iter(())


@dataclass(slots=True, eq=False)
class _Record:
    """The times of a request on the device, in seconds: of its arrival, its first batch, and the first and
    the last of its tokens or other results; None until it happened.

    resumed: its first tokens are another engine's, so that this engine's times are not the request's.
    """

    request: Request
    arrival: float
    resumed: bool
    scheduled: float | None = None
    first: float | None = None
    last: float = 0.0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def add(self, now: float) -> None:
        """Notes a result at `now`."""
        self.last = now
        if self.first is None:
            self.first = now


class Reporter:
    """Makes Outputs of events. It is called only after the next batch has been submitted."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._unscheduled: set[str] = set()

    def add(self, request: Request, device_now: float) -> None:
        """Takes on a request that comes to the device at `device_now`."""
        self._records[request.id] = _Record(request, device_now, request.num_generated > 0)
        self._unscheduled.add(request.id)

    def schedule(self, batch: Batch, device_now: float) -> None:
        """Notes which requests leave the queue of the device at `device_now`."""
        if self._unscheduled:
            for chunk in batch.chunks:
                if chunk.request.id in self._unscheduled:
                    self._unscheduled.remove(chunk.request.id)
                    self._records[chunk.request.id].scheduled = device_now

    def outputs(self, batch: Completed) -> list[Output]:
        """Returns the outputs of a batch that is complete."""
        if batch.result.step.value_rows:
            return self._encoded(batch) + [self.fail(failure) for failure in batch.failures]
        logprobs = self._logprobs(batch.result)
        outputs = [
            self._output(event, logprobs.get(event.request.id, _NONE), batch.device_now)
            for event in batch.events
            if event.token is not None or event.finish_reason is not None
        ]
        return outputs + [self.fail(failure) for failure in batch.failures]

    def end(self, request: Request, reason: FinishReason) -> Output:
        """Returns the last output of a request that ends without a token."""
        return self._last(request, Output(request.id, finish_reason=reason.value))

    def fail(self, failure: RequestFailure) -> Output:
        """Returns the last output of a request that cannot go on."""
        request, kind, error = failure
        ended = FinishReason.ERROR.value
        return self._last(request, Output(request.id, finish_reason=ended, error=error, error_kind=kind))

    def _output(self, event: TokenEvent, logprobs: Iterator[TokenLogprobs], device_now: float) -> Output:
        """Returns the output of a token, or of an end; `logprobs` has the token's next."""
        request = event.request
        record = self._records[request.id]
        output = Output(request.id, [] if event.token is None else [event.token], [*islice(logprobs, 1)])
        if event.token is not None:
            if record.first is None and not record.resumed:
                prompt_logprobs, cached = record.prompt_logprobs, request.num_cached
                output = replace(output, prompt_logprobs=prompt_logprobs, cached=cached)
            record.add(device_now)
        if request.drafter is not None:
            output = replace(output, predicted=_predicted(request))
        if event.finish_reason is not None:
            output = self._last(request, replace(output, finish_reason=event.finish_reason.value))
        return output

    def _encoded(self, batch: Completed) -> list[Output]:
        """Returns the only output of each request whose text a batch has completed."""
        chunk_of = {chunk.request: at for at, chunk in enumerate(batch.result.step.batch.chunks)}
        outputs = []
        for request, _, reason in batch.events:
            if reason is not None:
                self._records[request.id].add(batch.device_now)
                values, rows = values_of(batch.result, chunk_of[request])
                output = Output(request.id, cached=request.num_cached, finish_reason=reason.value)
                outputs.append(self._last(request, replace(output, values=values, rows=rows)))
        return outputs

    def _last(self, request: Request, output: Output) -> Output:
        """Adds the times of a request that has ended, and forgets it."""
        self._unscheduled.discard(request.id)
        record = self._records.pop(request.id)
        return replace(
            output,
            device=_device_times(record),
            preemptions=request.num_preemptions,
            speculated=_speculated(record),
        )

    def _logprobs(self, result: StepResult) -> dict[str, Iterator[TokenLogprobs]]:
        """Returns the logprobs of the tokens drawn, by request and in order; a prompt's are kept until the
        first token."""
        if not result.has_logprobs:
            return {}
        drawn: dict[str, Iterator[TokenLogprobs]] = {}
        for index, chunk in enumerate(result.step.batch.chunks):
            record = self._records.get(chunk.request.id)
            if record is not None and record.request is chunk.request:
                record.prompt_logprobs += result.prompt_logprobs(index)
                drawn[chunk.request.id] = iter(result.logprobs(index))
        return drawn


def _predicted(request: Request) -> Predicted | None:
    """Returns how much of a request's prediction was accepted; None where it had none."""
    if not isinstance(request.drafter, RequestDrafter) or not request.drafter.predicts:
        return None
    return Predicted(request.drafter.accepted[0], request.drafter.rejected[0])


def _speculated(record: _Record) -> Speculated | None:
    """Returns the results of speculation; None where there were no drafts, or the first tokens are another
    engine's."""
    request = record.request
    if request.drafter is None or record.resumed:
        return None
    drafted = request.drafted or Drafted()
    return Speculated(drafted.histogram, drafted.tokens, isinstance(request.drafter, SyntheticDrafter))


def _device_times(record: _Record) -> DeviceTimes | None:
    """Returns the request's times on the device; None where it had no result, or it has lost a device."""
    first, last, arrival, scheduled = record.first, record.last, record.arrival, record.scheduled
    if first is None or scheduled is None or record.resumed:
        return None
    gaps = max(0, record.request.num_generated - 1)
    return DeviceTimes(
        arrived_at_s=arrival,
        time_in_queue_ms=(scheduled - arrival) * MILLISECONDS,
        time_to_first_token_ms=(first - arrival) * MILLISECONDS,
        time_per_output_token_ms=(last - first) / gaps * MILLISECONDS if gaps else None,
        total_ms=(last - arrival) * MILLISECONDS,
    )
