"""What the engine runs on: the parts of a deployment, loaded and ready.

`corepipe.engine.assembly.assembly.assemble` makes a Deployment; nothing here or behind it loads a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corepipe.engine.batch.encoding import Encoding
from corepipe.engine.batch.requests import SampledRequest
from corepipe.engine.config import EngineConfig
from corepipe.engine.heartbeat import Counter
from corepipe.engine.messages import Ready
from corepipe.errors import UserError
from corepipe.neuron.inputs import ChainingExecutor, Executor
from corepipe.neuron.timing.clock import Clock
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.drafts import BatchDrafter
from corepipe.scheduler.policy import Policy
from corepipe.scheduler.request import Drafter
from corepipe.scheduler.scheduler import SchedulerConfig

if TYPE_CHECKING:  # an engine reads tokens for a grammar alone
    from corepipe.models.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """What a replica is made of: what computes it, what times it, and its scheduler's rules.

    max_batch_delay: seconds for which it waits for more, before it computes less than a full batch.
    together: who guesses for several of its requests in one go.
    chaining: the executor, where steps may be queued before they are asked for (None: they may not).
    """

    executor: Executor
    timeline: Timeline
    scheduler: SchedulerConfig
    policy: Policy
    max_batch_delay: float = 0.0
    together: BatchDrafter | None = None
    chaining: ChainingExecutor | None = None


def _no_tokenizer() -> Tokenizer:
    raise UserError("there is no tokenizer")


def _nobody(_request: SampledRequest) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Deployment:
    """All replicas, the clock they share, and what the server is told about them.

    seed makes the draws of requests that bring no seed of their own repeatable.  tokenizer reads the model's,
    for who asks for it; it raises UserError.  encoding: of a model that generates nothing (None: it does).
    drafter: who guesses how a request's answer goes on, if anybody does; synthetic_acceptance:
    how often they are right is assumed.
    """

    replicas: tuple[ReplicaParts, ...]
    clock: Clock
    vocab_size: int
    seed: int
    ready: Ready
    tokenizer: Callable[[], Tokenizer] = _no_tokenizer
    encoding: Encoding | None = None
    drafter: Callable[[SampledRequest], Drafter | None] = _nobody
    synthetic_acceptance: bool = False

    def heed(self, files: Sequence[int]) -> None:
        """Where one of these can be read, something has come: no step starts that was not asked for."""
        for replica in self.replicas:
            if replica.chaining is not None:
                replica.chaining.heed(files)

    def close(self) -> None:
        """Stops the executors and frees what they hold."""
        for replica in self.replicas:
            replica.executor.close()


Assemble = Callable[[EngineConfig, Callable[[str, float], None], Counter], Deployment]
"""Loads what a config names; told a progress callback (what, share done), and what the executors are to count
in while they compute.  Raises UserError."""
