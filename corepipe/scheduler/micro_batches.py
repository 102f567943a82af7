"""The distribution of a pipeline's requests over batches, so that its stages work at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.kv_cache import KVCache
from corepipe.scheduler.queue import WaitingQueue
from corepipe.scheduler.request import Request


class Pipeline(Protocol):
    """Chooses in how many batches work passes through a pipeline soonest."""

    def generating_batches(self, sequences: int, tokens: int) -> int:
        """Returns the number of batches for `sequences` that generate, with `tokens` tokens in all."""

    def batches_with_prompts(self, sequences: int, tokens: int, prompt: int) -> int:
        """Returns how many batches to have in flight where such sequences generate, or none, and a batch
        could take `prompt` tokens of prompts; no fewer than without prompts."""


@dataclass(frozen=True, slots=True)
class OneForEachStage:
    """A pipeline whose number of stages is all that is known of it."""

    stages: int

    def generating_batches(self, sequences: int, _tokens: int) -> int:
        return min(sequences, self.stages)

    def batches_with_prompts(self, _sequences: int, _tokens: int, _prompt: int) -> int:
        return self.stages


class BatchShare(NamedTuple):
    """The limits of the next batch.

    seats: its sequences at most, so that all batches have about the same size.  kept: how many of the seats
    are kept for waiting requests, which might otherwise wait for as long as others run.  prompts_only: all
    requests that generate are in flight, and the stages have room for prompts alone.
    """

    seats: int
    kept: int
    prompts_only: bool


class Sharing:
    """Distributes the requests of one replica over batches: those in `running`, and those that may join."""

    def __init__(
        self,
        config: SchedulerConfig,
        running: Sequence[Request],
        queue: WaitingQueue,
        kv: KVCache,
        pipeline: Pipeline,
    ) -> None:
        self._config = config
        self._running = running
        self._queue = queue
        self._kv = kv
        self._pipeline = pipeline
        self._changes = 0
        self._situation = (-1, 0)
        self._batches = 1

    def changed(self) -> None:
        """Notes that the set of running requests has changed."""
        self._changes += 1

    def share(self, in_flight: int, generating: int) -> BatchShare | None:
        """Returns the limits of the next batch, where `in_flight` others are in flight, `generating` of them
        with requests that generate; None where these are enough."""
        if self._config.stages == 1:
            return None if in_flight else BatchShare(self._config.max_num_seqs, 0, prompts_only=False)
        coming, tokens = self._admissible()
        self._think(coming, tokens)
        if self._are_enough(in_flight, tokens):
            return None
        seats = -(-(len(self._running) + coming) // self._batches)
        missing = self._batches - in_flight
        if missing > 0:
            idle = sum([r.num_computed < r.num_tokens for r in self._running]) + coming
            seats = min(seats, -(-idle // missing))
        return BatchShare(seats, -(-coming // self._batches), prompts_only=generating >= self._batches)

    def has_enough(self, in_flight: int) -> bool:
        """Returns whether `share` will give nothing while others are under way and nothing else changes."""
        if self._config.stages == 1:
            return in_flight > 0
        coming, tokens = self._admissible()
        return self._situation == (self._changes, coming) and self._are_enough(in_flight, tokens)

    def _are_enough(self, in_flight: int, coming: int) -> bool:
        """Returns whether so many batches are enough, where requests with `coming` tokens may join."""
        return in_flight >= self._batches and in_flight >= self._most_with_prompts(coming)

    def _think(self, coming: int, tokens: int) -> None:
        """Chooses the number of batches for the running requests and `coming` others with `tokens` tokens.

        It does so only when the set of requests has changed, not at each token: what is best changes slowly
        with the context, and each change costs a round in which the batches are of unequal size.
        """
        situation = (self._changes, coming)
        sequences = len(self._running) + coming
        if self._situation != situation and sequences:
            known = sum(request.num_tokens for request in self._running) + tokens
            self._batches = self._pipeline.generating_batches(sequences, known)
            self._situation = situation

    def _most_with_prompts(self, coming: int) -> int:
        """Returns how many batches to have in flight for the prompts of running requests and `coming` tokens
        of requests that may join; 0 where there are no prompts."""
        running = self._running
        prompts = [r.num_tokens - r.num_computed for r in running if r.num_tokens == r.num_prompt]
        waiting = coming + sum(prompts)
        if waiting == 0:
            return 0
        generating = [r.num_tokens for r in running if r.num_tokens > r.num_prompt]
        most = min(waiting, self._config.max_num_batched_tokens)
        return self._pipeline.batches_with_prompts(len(generating), sum(generating), most)

    def _admissible(self) -> tuple[int, int]:
        """Returns how many waiting requests seats and blocks would admit now, if none found a cached prefix,
        and their tokens."""
        seats = self._config.max_num_seqs - len(self._running)
        if seats == 0 or len(self._queue) == 0:
            return 0, 0
        blocks, count, tokens = self._kv.pool.available, 0, 0
        for request in self._queue:
            blocks -= self._kv.blocks_for(request.num_tokens)
            if count == seats or blocks < 0:
                break
            count += 1
            tokens += request.num_tokens
        return count, tokens
