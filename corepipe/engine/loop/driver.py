"""Messages in, outputs out: runs the replicas of a deployment for clients that submit requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from math import inf

from corepipe.engine.batch.arrays import derive_seed
from corepipe.engine.batch.grammar_pool import GrammarPool
from corepipe.engine.batch.masks import GrammarCompiler
from corepipe.engine.batch.requests import SampledRequest, to_request
from corepipe.engine.batch.runner import OnStart, RequestFailure
from corepipe.engine.loop.adapters import EngineAdapters, adapters_of
from corepipe.engine.loop.deployment import Deployment
from corepipe.engine.loop.kv_events import CacheEvents
from corepipe.engine.loop.loop import LEAD_SECONDS, Loop, ReplicaRouter, RequestSource, load_margin
from corepipe.engine.loop.replica import Completed, InFlight, Replica, ReplicaStats
from corepipe.engine.loop.reporter import Reporter
from corepipe.engine.lora import AdapterReport, LoadAdapter, UnloadAdapter
from corepipe.engine.messages import Abort, Output, Started, Stats, Submit, failed_output
from corepipe.scheduler.kv_cache import CacheListener
from corepipe.scheduler.request import FinishReason, Status
from corepipe.scheduler.scheduler import QueueFull

NO_ADAPTERS = "this engine serves no LoRA adapters: --enable-lora"


def _none_served(command: LoadAdapter) -> AdapterReport:
    return AdapterReport(command.name, command.path, error=NO_ADAPTERS)


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
        parts = deployment.adapters
        self._adapters = None if parts is None else EngineAdapters(parts, on_compiled)
        self._accepted = 0
        self._unreported: deque[Completed] = deque()
        self._refused: list[AdapterReport] = []
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

    def load_adapter(self, command: LoadAdapter) -> AdapterReport:
        """Loads a LoRA adapter now; `handle` does it beside the loop."""
        return _none_served(command) if self._adapters is None else self._adapters.load(command)

    def adapter_reports(self) -> list[AdapterReport]:
        """Returns the reports on adapters that were loaded since the last call; frees those that no request
        has any more."""
        reports, self._refused = self._refused, []
        if self._adapters is not None:
            reports += self._adapters.take()
            if self._adapters.retired:
                self._adapters.drop_unused(self._adapters_in_use())
        return reports

    def handle(self, command: Submit | Abort | LoadAdapter | UnloadAdapter) -> None:
        """Takes a request on, refuses it, or aborts requests; the results come with `outputs`. Loads and
        unloads adapters, see `adapter_reports`.

        Commands between two calls of `submit` come at the same moment of the device's time.
        """
        if isinstance(command, Submit):
            self._admit(command)
        elif isinstance(command, Abort):
            self._abort(command.ids)
        elif self._adapters is None:
            self._refused += [_none_served(command)] if isinstance(command, LoadAdapter) else []
        elif isinstance(command, LoadAdapter):
            self._adapters.start(command)
        else:
            self._adapters.retire(command.digest)

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
        if self._adapters is not None:
            self._adapters.close()
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
        if submit.adapter is not None:
            request.adapter = self._slot(submit.adapter.digest)
        request.held = bool(request.grammar)
        if request.prediction or self._deployment.drafts:
            request.drafter = self._deployment.drafter(request)
        replica = self._loop.add(request)
        self._reporter.add(request, replica.device_now)
        self._accepted += 1
        if request.held:
            self._compile(request)

    def _slot(self, digest: str) -> int:
        """Returns the slot of an adapter. Raises ValueError where it is not loaded."""
        if self._adapters is None:
            raise ValueError(NO_ADAPTERS)
        return self._adapters.slot(digest)

    def _adapters_in_use(self) -> set[str]:
        """Returns the hashes of the adapters of all requests that have not ended or are in flight."""
        used: set[str] = set()
        for replica in self.replicas:
            used |= adapters_of(replica.scheduler.requests)
            for batch in replica.in_flight:
                used |= adapters_of(chunk.request for chunk in batch.step.batch.chunks)
        return used

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
