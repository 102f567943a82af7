"""The parts of a deployment, loaded and ready, on which the engine runs.

`corepipe.engine.assembly.assembly.assemble` makes a Deployment; nothing here or behind it loads a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corepipe.engine.batch.arrays import joining
from corepipe.engine.batch.encoding import Encoding, EncodingRunner
from corepipe.engine.batch.requests import SampledRequest
from corepipe.engine.batch.runner import OnStart, Runner, StepQueue
from corepipe.engine.channel import Counter
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.adapters import AdapterParts, AdapterTable
from corepipe.engine.loop.batch_delay import replica_of
from corepipe.engine.loop.replica import BatchRunner, Replica
from corepipe.engine.loop.synthetic_acceptance import SyntheticAcceptanceRunner
from corepipe.engine.messages import Ready
from corepipe.errors import UserError
from corepipe.neuron.step import ChainingExecutor, Executor
from corepipe.neuron.timing.clock import Clock
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.next_batch import BatchDrafter, Policy
from corepipe.scheduler.request import Drafter
from corepipe.scheduler.scheduler import Scheduler, SchedulerConfig

if TYPE_CHECKING:  # an engine needs a tokenizer only for grammars
    from corepipe.models.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """The parts of a replica: what computes it, what times it, and its scheduler's rules.

    max_batch_delay: seconds for which it waits for more requests, before it computes less than a full batch.
    together: the drafter that drafts for several of its requests in one go. chaining: the executor, where
    steps may be queued before the scheduler asks for them (None: they may not). adapters: the executor's LoRA
    adapters.
    """

    executor: Executor
    timeline: Timeline
    scheduler: SchedulerConfig
    policy: Policy
    max_batch_delay: float = 0.0
    together: BatchDrafter | None = None
    chaining: ChainingExecutor | None = None
    adapters: AdapterTable | None = None


def _no_tokenizer() -> Tokenizer:
    raise UserError("there is no tokenizer")


def _nobody(_request: SampledRequest) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Deployment:
    """All replicas, the clock they share, and their description for the server.

    seed makes the draws of requests that bring no seed of their own repeatable. tokenizer reads the model's
    tokenizer; it raises UserError. encoding: of a model that generates nothing (None: it generates). drafter:
    returns the drafter of a request, None where it has none; unless the model `drafts`, only a request with a
    prediction has one. synthetic_acceptance: how often drafts are accepted is assumed. adapters: None where
    no LoRA adapters are served.
    """

    replicas: tuple[ReplicaParts, ...]
    clock: Clock
    vocab_size: int
    seed: int
    ready: Ready
    tokenizer: Callable[[], Tokenizer] = _no_tokenizer
    encoding: Encoding | None = None
    drafter: Callable[[SampledRequest], Drafter | None] = _nobody
    drafts: bool = True
    synthetic_acceptance: bool = False
    adapters: AdapterParts | None = None

    def replica(self, number: int, on_start: OnStart) -> Replica:
        """Makes replica number `number`, idle; on_start: see `Runner`."""
        parts = self.replicas[number]
        scheduler = Scheduler(parts.scheduler, parts.policy, parts.timeline.rounds, parts.together)
        runner, delay = self._runner(parts, on_start, scheduler), parts.max_batch_delay
        return replica_of(number, scheduler, runner, parts.timeline, paced=self.clock.paced, delay=delay)

    def _runner(self, parts: ReplicaParts, on_start: OnStart, scheduler: Scheduler) -> BatchRunner:
        join = joining(parts.scheduler)
        kinds = None if self.adapters is None else self.adapters.kinds
        if self.encoding is not None:
            return EncodingRunner(parts.executor, self.encoding, on_start, join, kinds)
        step_queue = None if parts.chaining is None else StepQueue(parts.chaining, scheduler.repeats)
        runner = Runner(parts.executor, self.vocab_size, on_start, join, step_queue, kinds)
        return SyntheticAcceptanceRunner(runner) if self.synthetic_acceptance else runner

    def heed(self, files: Sequence[int]) -> None:
        """Sets files that hold back queued steps: while one of these can be read, a command has come, and no
        step starts that the scheduler has not asked for."""
        for replica in self.replicas:
            if replica.chaining is not None:
                replica.chaining.heed(files)

    def close(self) -> None:
        """Stops the executors and frees their memory."""
        for replica in self.replicas:
            replica.executor.close()


Assemble = Callable[[EngineConfig, Callable[[str, float], None], Counter], Deployment]
"""Loads what a config names; takes a callback for progress (what, share done), and the counter in which the
executors count while they compute. Raises UserError."""
