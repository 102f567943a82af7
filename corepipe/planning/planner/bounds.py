"""Bounds that no schedule can beat: closed forms of the cost model that spare the planner a simulation.

Each bound is on the safe side: nothing that a simulation would accept is refused.

- A token takes at least a decode step of its request alone, at its shortest context.
- A first token takes at least its prompt's own chunks, one after the other through the first stage.
- A replica's busiest stage spends, for each request, the time of its prompt's chunks and its tokens' part of
  decode steps.  A step's time is at least a + b x sequences, so that a stage can only gain from larger
  batches; but where tokens must not take longer than the objective, batches cannot be larger than that
  allows, prompts that interrupt them included.
- With speculative decoding a step has as many tokens of a request as it may have, or in the long run as many
  as are assumed to be accepted, and costs no less than a step without drafts.
- Requests wait for a replica that computes no other prompt, where a batch has one (`Queue`), and for a place
  in a batch, where nobody is preempted.  `lateness` counts those that must be late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from math import ceil, floor, inf

import numpy as np

from corepipe.neuron.chips.runtime_profile import Buckets
from corepipe.neuron.compile.memory import CoreMemory, blocks_that_fit
from corepipe.neuron.timing.cost import CostModel, StepShape
from corepipe.planning.planner.demand import Floats, Objectives, RequestSizes
from corepipe.planning.planner.lateness import Queue
from corepipe.planning.planner.space import BatchLimits, DeploymentShape

MOST_SEQUENCES = 256
"""Largest batch that is considered."""

CROWD = 2.3
"""Standard deviations above the mean number of running requests for which a batch should have room, so
that they need not queue: the 99th percentile of a Poisson distribution."""

SLACK = 1.1
"""Factor by which a finite run may do better than the steady state that a capacity is computed for."""


ROUNDING = 1 + 1e-9
"""Tolerance for rounding: a simulation adds the same times in another order."""

BEYOND_HELP = 1e6
"""Excess of a failure that no change of the objectives would help."""


class Reason(StrEnum):
    """Reasons for which a configuration fails."""

    MEMORY = "memory"
    TTFT = "TTFT"
    TPOT = "TPOT"
    THROUGHPUT = "throughput"
    UNSUPPORTED = "not possible"
    VALIDATION = "validation"
    PRICE = "price"


@dataclass(frozen=True, slots=True)
class PlanFailure:
    """The reason why a configuration fails.  `excess`: its best possible figure by the allowed one."""

    reason: Reason
    text: str
    excess: float = inf


@dataclass(frozen=True)
class ShapeTimes:
    """The times and the memory of one shape: of its Programs alone, and the KV blocks that fit beside their
    weights.

    make_cost: makes the cost model when a time is first needed: most shapes fail by their memory alone.
    cores: of one replica.  host: seconds of the host per step, which a step's time includes.  block_size:
    positions of a KV block.
    """

    shape: DeploymentShape
    make_cost: Callable[[], CostModel]
    cores: Sequence[CoreMemory]
    host: float
    block_size: int

    @cached_property
    def _cost(self) -> CostModel:
        return self.make_cost()

    def step(self, shape: StepShape) -> float:
        """Returns the seconds from a step's submission to its result, on an idle replica."""
        lone = self._cost.lone
        return self.host + lone.latency(shape) + lone.sampling_seconds(shape)

    def busiest(self, shape: StepShape) -> float:
        """Returns the seconds for which a step occupies the busiest stage."""
        stages = self._cost.stage_seconds(shape)
        return max(self.host, *stages) if len(stages) > 1 else self.host + stages[0]

    def tokens_alone(self, longest: int) -> Floats:
        """Returns [longest]: seconds of a decode step of a single request with 1 ... `longest` tokens of
        context."""
        step = StepShape.decode(1, 1)
        moved = sum(self._cost.transfer_seconds(stage, step) for stage in range(self._cost.stages))
        stages = self._cost.lone.decode_seconds(1, np.arange(1, longest + 1))
        alone: Floats = stages.sum(axis=0) + (self.host + moved + self._cost.sampling_seconds(step))
        return alone

    def prompt(self, tokens: int, chunk: int) -> float:
        """Returns the seconds until a single prompt's first token, in chunks of up to `chunk` tokens."""
        chunks = _chunks(tokens, chunk)
        first = sum(self.host + self._cost.lone.stage_seconds(step)[0] for step in chunks[:-1])
        return first + self.step(chunks[-1])

    def prompt_device(self, tokens: int, chunk: int) -> float:
        """Returns the seconds for which a single prompt occupies the first stage, without the host."""
        return sum(self._cost.lone.stage_seconds(step)[0] for step in _chunks(tokens, chunk))

    def prompt_work(self, tokens: int, chunk: int) -> float:
        """Returns the seconds for which a prompt occupies the busiest stage."""
        return sum(self.busiest(step) for step in _chunks(tokens, chunk))

    @cached_property
    def blocks(self) -> int:
        """KV blocks that a replica can have; negative where not even the weights fit."""
        budget = self.shape.profile.kv_budget
        return blocks_that_fit(self.cores, self.shape.placement.data, self.shape.device, budget)

    @cached_property
    def weights(self) -> int:
        """Bytes of weights on the fullest core."""
        return max(core.weights for core in self.cores)


def _chunks(tokens: int, chunk: int) -> list[StepShape]:
    starts = range(0, tokens, chunk)
    counts = [min(chunk, tokens - start) for start in starts]
    last = len(counts) - 1
    return [
        StepShape.of([(start, count)], 1 if i == last else 0)
        for i, (start, count) in enumerate(zip(starts, counts, strict=True))
    ]


class ShapeBounds:
    """The bounds of one shape for a workload and its objectives; rates: for each position of a draft, the
    share of drafts that are accepted up to there."""

    def __init__(
        self, timed: ShapeTimes, sizes: RequestSizes, objectives: Objectives, rates: Sequence[float] = ()
    ) -> None:
        self._each = 1 + len(rates)
        self._standing = 1 + sum(rates)
        self._timed = timed
        self._sizes = sizes
        self._objectives = objectives
        self._segregated = timed.shape.profile.policy == "segregated"
        self._prompt = int(np.percentile(sizes.prompts, objectives.percentile, method="lower"))
        self._context = round(float((sizes.prompts + sizes.answers / 2).mean()))
        self._steps: list[tuple[float, float]] = []
        self._verifying: list[float] = []
        self._answer = float(sizes.answers.mean())

    def failure(self, limits: BatchLimits) -> PlanFailure | None:
        """Returns why no number of such instances suffices; None where the bounds do not tell."""
        return self._memory(limits) or self._tpot() or self._ttft(limits)

    def capacity(self, limits: BatchLimits) -> float:
        """Returns the most requests per second that an instance sustains within the objective for a token."""
        batches = np.arange(1, self._largest_batch(limits) + 1)
        steps, busy = self._decode_times(len(batches))
        work = self._prompt_work(limits.max_num_batched_tokens)
        decode = self._answer * busy / (batches * self._standing)
        most = 1 / (work + decode if self._segregated else np.maximum(work, decode))
        if self._objectives.tpot is not None:
            most = np.minimum(most, self._uninterrupted(steps, work))
        share = max(self._objectives.percentile, 1.0) / 100
        return SLACK / share * self._timed.shape.placement.data * float(most.max())

    def fewest(self, limits: BatchLimits) -> int:
        """Returns the number of instances below which the rate cannot be sustained; 1 where no number
        sustains it: a simulation then finds the reason."""
        capacity = self.capacity(limits)
        return ceil(self._objectives.rate / capacity) if capacity > 0 else 1

    def queues(self, limits: BatchLimits) -> list[Queue]:
        """Returns the queues of one instance in which every request waits: for a replica that computes no
        other prompt, and for a place in a batch.

        Returns none where prompts share batches or stages, where they may be cached, or without an objective
        for the first token.
        """
        shape, shortest = self._timed.shape, int(self._sizes.prompts.min())
        pipeline, data = shape.placement.pipeline, shape.placement.data
        if not self._segregated or pipeline > 1 or self._sizes.shared or self._objectives.ttft is None:
            return []
        chunk = limits.max_num_batched_tokens
        patience = self._objectives.ttft - self._timed.prompt(shortest, chunk)
        prompt = self._timed.prompt_device(shortest, chunk)
        queues = [Queue(data, prompt, patience)]
        if self._timed.blocks >= limits.max_num_seqs * -(-limits.max_model_len // self._timed.block_size):
            queues.append(Queue(data * limits.max_num_seqs, prompt + float(self._decoding.min()), patience))
        return queues

    def estimate(self, limits: BatchLimits, instances: int) -> float:
        """Estimates the seconds of a mean request under load, in steady state and with room in the batch
        for peaks: it decides the order in which deployments of one price are tried.  Infinite where the
        load is too high."""
        replicas = instances * self._timed.shape.placement.data
        rate = self._objectives.rate / replicas
        left = 1 - rate * self._prompt_work(limits.max_num_batched_tokens)
        batches = np.arange(1, self._largest_batch(limits) + 1)
        if left <= 0:
            return inf
        token = self._token_times(len(batches)) / left
        running = rate * self._answer * token
        enough = np.flatnonzero(batches >= running + CROWD * np.sqrt(running))
        if not len(enough):
            return inf
        first = self._timed.prompt(self._mean_prompt, limits.max_num_batched_tokens) / left
        return float(first + self._answer * token[enough[0]])

    def is_likely(self, limits: BatchLimits, instances: int) -> bool:
        """Tells whether a mean request is likely to be in time, in steady state."""
        seconds, tpot = self.estimate(limits, instances), self._objectives.tpot
        if seconds == inf or tpot is None:
            return seconds < inf
        return seconds <= (self._objectives.ttft or inf) + self._answer * tpot

    def likely_queues(self, limits: BatchLimits, instances: int) -> list[Queue]:
        """Returns `queues` for one replica with estimated instead of least times: a prompt waits for a
        step, an answer for prompts."""
        queues = self.queues(limits)
        if not queues:
            return []
        step = self._timed.step(StepShape.decode(limits.max_num_seqs, self._context))
        whole = min(self.estimate(limits, instances), BEYOND_HELP)
        seconds = [queues[0].seconds, *(whole for _ in queues[1:])]
        return [
            replace(
                queue,
                servers=queue.servers // self._timed.shape.placement.data,
                seconds=taken,
                patience=queue.patience - step,
            )
            for queue, taken in zip(queues, seconds, strict=True)
        ]

    def fastest(self, limits: BatchLimits) -> float:
        """Returns the seconds that a request takes at the objectives' percentile, at least."""
        shortest = int(self._sizes.prompts.min())
        first = self._timed.prompt(self._computed(shortest), limits.max_num_batched_tokens)
        return first + self._objectives.quantile(self._decoding)

    def _memory(self, limits: BatchLimits) -> PlanFailure | None:
        blocks, wanted = self._timed.blocks, -(-limits.max_model_len // self._timed.block_size)
        if blocks >= wanted:
            return None
        instance, cores = self._timed.shape.device, self._timed.shape.placement.cores
        bank = instance.bank_bytes / 2**30
        weights = self._timed.weights / 2**30
        share = min(instance.cores_per_bank, cores)
        return PlanFailure(
            Reason.MEMORY,
            f"weights of {weights:.1f} GiB on a core leave no room for {limits.max_model_len} tokens; "
            f"{share} share {bank:.0f} GiB",
            BEYOND_HELP * (1 + weights * share / bank),
        )

    def _tpot(self) -> PlanFailure | None:
        objective = self._objectives.tpot
        several = self._sizes.answers > 1
        least = self._objectives.quantile(self._decoding[several] / (self._sizes.answers[several] - 1))
        if objective is None or least <= objective * ROUNDING:
            return None
        text = f"a token alone takes {least * 1e3:.1f} ms"
        return PlanFailure(Reason.TPOT, text, least / objective)

    def _ttft(self, limits: BatchLimits) -> PlanFailure | None:
        objective = self._objectives.ttft
        if objective is None:
            return None
        least = self._timed.prompt(self._computed(self._prompt), limits.max_num_batched_tokens)
        if least <= objective * ROUNDING:
            return None
        text = f"a prompt alone takes {least * 1e3:.0f} ms to its first token"
        return PlanFailure(Reason.TTFT, text, least / objective)

    def _computed(self, prompt: int) -> int:
        """Returns the tokens of a prompt that must be computed."""
        return 1 if self._sizes.shared else prompt

    @cached_property
    def _decoding(self) -> Floats:
        """[requests]: seconds from the first token of each request to its last, at least.

        That is the time of the request alone; but where contexts are padded to a bucket it is by their mean
        (`chips.runtime_profile.pad`), so that a request beside the shortest ones is as fast as they are.
        """
        prompts, answers = self._sizes.prompts, self._sizes.answers
        steps = self._timed.tokens_alone(self._sizes.longest)
        if self._each > 1:
            least: Floats = -(-(answers - 1) // self._each) * steps[prompts]
            return least
        if self._timed.shape.profile.decode_buckets is not Buckets.EXACT:
            steps[:] = steps[prompts.min()]
        until = np.concatenate([[0.0], np.cumsum(steps)])
        seconds: Floats = until[prompts + answers - 1] - until[prompts]
        return seconds

    @cached_property
    def _mean_prompt(self) -> int:
        return max(1, round(float(self._sizes.prompts.mean())))

    def _decode_times(self, sequences: int) -> Floats:
        """Returns [2, sequences]: seconds of a decode step from end to end, and on the busiest stage."""
        while len(self._steps) < sequences:
            step = StepShape.decode(len(self._steps) + 1, self._context)
            self._steps.append((self._timed.step(step), self._timed.busiest(step)))
        return np.array(self._steps[:sequences]).T

    def _token_times(self, sequences: int) -> Floats:
        """Returns [sequences]: mean seconds between the tokens of a request."""
        if self._each == 1:
            times: Floats = self._decode_times(sequences)[0]
            return times
        while len(self._verifying) < sequences:
            chunk = (self._context - 1, self._each)
            size = len(self._verifying) + 1
            step = StepShape.of([chunk] * size, size * self._each, self._each)
            self._verifying.append(self._timed.step(step) / self._standing)
        return np.array(self._verifying[:sequences])

    def _prompt_work(self, chunk: int) -> float:
        if self._sizes.shared:
            return 0.0
        return self._timed.prompt_work(self._mean_prompt, chunk)

    def _largest_batch(self, limits: BatchLimits) -> int:
        held = self._timed.blocks * self._timed.block_size / max(1.0, float(self._sizes.prompts.min()))
        return max(1, min(limits.max_num_seqs, MOST_SEQUENCES, floor(held)))

    def _uninterrupted(self, steps: Floats, work: float) -> Floats:
        """Returns the rate in requests per second at which the prompts of a replica leave the tokens of a
        batch within the objective."""
        assert self._objectives.tpot is not None
        left = 1 - steps / (SLACK * self._each * self._objectives.tpot)
        if not self._segregated or work == 0:
            return np.where(left >= 0, inf, 0.0)
        return np.maximum(left, 0.0) / work
