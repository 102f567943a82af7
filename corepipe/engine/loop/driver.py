"""Messages in, outputs out: runs the replicas of a deployment for clients that submit requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from msgspec.structs import replace

from corepipe.engine.batch.arrays import derive_seed
from corepipe.engine.batch.encoding import values_of
from corepipe.engine.batch.grammar_pool import GrammarPool
from corepipe.engine.batch.masks import GrammarCompiler
from corepipe.engine.batch.requests import SampledRequest, to_request
from corepipe.engine.batch.runner import OnStart, RequestFailure, StepResult
from corepipe.engine.drafters.speculation import RequestDrafter
from corepipe.engine.drafters.synthetic import SyntheticDrafter
from corepipe.engine.loop.deployment import Deployment
from corepipe.engine.loop.kv_events import CacheEvents
from corepipe.engine.loop.loop import LEAD_SECONDS, Loop, ReplicaRouter, RequestSource, load_margin
from corepipe.engine.loop.replica import Completed, InFlight, Replica, ReplicaStats
from corepipe.engine.messages import (
    Abort,
    DeviceTimes,
    Output,
    Predicted,
    Speculated,
    Started,
    Stats,
    Submit,
    TokenLogprobs,
    failed_output,
)
from corepipe.scheduler.kv_cache import CacheListener
from corepipe.scheduler.request import Batch, Drafted, FinishReason, Request, Status, TokenEvent
from corepipe.scheduler.scheduler import QueueFull

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


def _nothing(_started: list[Started]) -> None:
    """Does nothing: for callers whose requests end with the engine."""


class Driver:
    """Runs a deployment; implements `loop.LoopListener`.

    A turn is: `complete` the batch that is due, `handle` the commands that have come in, `submit`, and, while
    the batches compute, send the `outputs`. `patience` returns how long there is nothing else to do.
    `on_start`: see `Runner`. `on_compiled` is called by another thread when there is something to `release`.
    `cache_events` gets the changes of the prefix caches, and publishes them with each turn's outputs.
    """

    def __init__(
        self,
        deployment: Deployment,
        on_start: OnStart = _nothing,
        on_compiled: Callable[[], None] = lambda: None,
        cache_events: CacheEvents | None = None,
    ) -> None:
        limits = deployment.replicas[0].scheduler
        replicas = [deployment.replica(number, on_start) for number in range(len(deployment.replicas))]
        self._deployment = deployment
        self._max_model_len = limits.max_model_len
        self._task = deployment.ready.task
        router = ReplicaRouter([replica.scheduler for replica in replicas], load_margin(limits.max_num_seqs))
        self._loop = Loop(replicas, deployment.clock, self, router)
        self._stats = [ReplicaStats(replica, encodes=deployment.encoding is not None) for replica in replicas]
        self._cache_events = cache_events
        if cache_events is not None:
            for replica in replicas:
                replica.scheduler.listen(cache_events.log.of_replica(replica.number))
        self._reporter = Reporter()
        self._on_compiled = on_compiled
        self._grammars: GrammarPool | None = None  # until the first request with a grammar
        self._accepted = 0
        self._unreported: deque[Completed] = deque()
        self._outputs: list[Output] = []

    def listen(self, listener: CacheListener) -> None:
        """Gives `listener` the changes of each replica's prefix cache from now on; the caches are empty
        yet."""
        for replica in self.replicas:
            replica.scheduler.listen(listener)

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The replicas, by number."""
        return self._loop.replicas

    @property
    def busy(self) -> bool:
        """True while a request has not ended, a batch is in flight, or outputs wait to be sent."""
        return bool(self._unreported or self._outputs) or any(
            replica.in_flight or replica.scheduler.unfinished for replica in self.replicas
        )

    def next_event(self) -> float:
        """Returns when the next turn has anything to do, on the clock; infinity: not before a command
        comes."""
        return self._loop.next_event()

    def patience(self) -> float | None:
        """Returns the host seconds to wait for commands before the next turn; None: without limit."""
        if self._unreported or self._outputs:
            return 0.0
        known = [self._loop.patience(), None if self._grammars is None else self._grammars.patience()]
        return min((each for each in known if each is not None), default=None)

    def turns(self, source: RequestSource) -> Iterator[None]:
        """Runs until the source is at its end; after each turn there may be `outputs`."""
        return self._loop.turns(source)

    def turn(self) -> list[Output]:
        """Runs a whole turn, for callers that wait for no commands: the next event, however far off it is."""
        if self._loop.next_event() == inf and not self._outputs and self._grammars is not None:
            self._grammars.wait()
        self.complete(within=inf)
        self.release()
        self.submit()
        return self.outputs()

    def complete(self, within: float = LEAD_SECONDS) -> None:
        """Takes the next event, if it is not more than `within` host seconds off."""
        self._loop.complete(within)

    def submit(self) -> None:
        """Starts a batch wherever a replica accepts one."""
        self._loop.submit()

    def outputs(self) -> list[Output]:
        """Returns the outputs since the last call."""
        self._collect()
        if self._cache_events is not None:
            self._cache_events.publish_new()
        outputs, self._outputs = self._outputs, []
        return outputs

    def handle(self, command: Submit | Abort) -> None:
        """Takes a request on, refuses it, or aborts requests; the results come with `outputs`.

        Commands between two calls of `submit` come at the same moment of the device's time.
        """
        if isinstance(command, Submit):
            self._admit(command)
        else:
            self._abort(command.ids)

    def release(self) -> None:
        """Lets requests start whose grammars have been compiled, and refuses those whose grammars cannot
        be."""
        for done in () if self._grammars is None else self._grammars.take():
            request = done.request
            if request.status is Status.FINISHED:
                continue
            if done.constraint is None:
                self._loop.abort(request.id)
                self._outputs.append(
                    self._reporter.fail(RequestFailure(request, "invalid", done.error or ""))
                )
            else:
                request.constraint = done.constraint
                replica, seconds = self._loop.release(request), done.constraint.compile_seconds
                if seconds is not None:
                    self._stats[replica.number].compiled(seconds)

    def abort_all(self) -> None:
        """Aborts every request."""
        self._abort([id_ for replica in self.replicas for id_ in replica.scheduler.request_ids])

    def stats(self) -> list[Stats]:
        """Returns the Stats of each replica; counts since the last call start anew."""
        return [stats.stats() for stats in self._stats]

    def forget_stats(self) -> None:
        """Drops the data of `stats`, for callers that do not read them, so that it does not grow."""
        for stats in self._stats:
            stats.forget()

    def close(self) -> None:
        """Frees the deployment; batches in flight are dropped."""
        self._deployment.close()

    def submitted(self, _replica: Replica, batch: InFlight) -> None:
        """See `loop.LoopListener`."""
        self._reporter.schedule(batch.step.batch, batch.timing.submitted_at)

    def completed(self, replica: Replica, batch: Completed, behind: float | None) -> None:
        """See `loop.LoopListener`."""
        self._stats[replica.number].count(batch, behind)
        self._unreported.append(batch)

    def _collect(self) -> None:
        while self._unreported:
            self._outputs += self._reporter.outputs(self._unreported.popleft())

    def _admit(self, submit: Submit) -> None:
        try:
            if any(submit.id in replica.scheduler for replica in self.replicas):
                raise ValueError(f"request {submit.id} already exists")
            self._add(submit)
        except QueueFull as error:
            self._outputs.append(failed_output(submit.id, str(error), "overloaded"))
        except ValueError as error:
            self._outputs.append(failed_output(submit.id, str(error), "invalid"))

    def _add(self, submit: Submit) -> None:
        seed = derive_seed(self._deployment.seed, self._accepted)
        vocab_size = self._deployment.vocab_size
        if self._deployment.encoding is not None:
            self._deployment.encoding.check(submit)
        request = to_request(submit, self._loop.moment(), seed, vocab_size, self._max_model_len, self._task)
        request.held = bool(request.grammar)
        if request.prediction or self._deployment.drafts:
            request.drafter = self._deployment.drafter(request)
        replica = self._loop.add(request)
        self._reporter.add(request, replica.device_now)
        self._accepted += 1
        if request.held:
            self._compile(request)

    def _compile(self, request: SampledRequest) -> None:
        """Starts the compilation of a grammar. In virtual time it takes no time: the next event must not
        depend on how long it takes here."""
        if self._grammars is None:
            compiler = GrammarCompiler(self._deployment.tokenizer, self._deployment.vocab_size)
            self._grammars = GrammarPool(
                lambda one: compiler.constraint(one.grammar, one.tokens[one.num_prompt :]), self._on_compiled
            )
        self._grammars.start(request)
        while self._deployment.clock.virtual and len(self._grammars):
            self._grammars.wait()
            self.release()

    def _abort(self, ids: Iterable[str]) -> None:
        self._collect()  # outputs of a completed step come before the abort
        for request_id in ids:
            request = self._loop.abort(request_id)
            if request is not None:
                self._outputs.append(self._reporter.end(request, FinishReason.ABORT))
