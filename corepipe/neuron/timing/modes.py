"""Choice of a Placement for `--mode latency | throughput | auto` and the degrees that were given.

- latency: the shortest time per token of a single request on one replica.  Candidates are the tensor degrees
that the instance accepts and, where cores keep weights on chip (inf1), pipelines: each stage keeps a part of
them; elsewhere a pipeline shortens no token's time.
- throughput: as many replicas as there are cores for, each on the fewest cores that hold it.
- auto: the fewest cores within 10 % of latency's time per token, on one replica.

Degrees that were given are kept, and experts are divided only where `--expert` is given: that makes a single
request's token slower on any Neuron stack, which passes it through all experts of a core.  The mode chooses
the other degrees.  Every choice must fit the memory; where nothing fits, the plain placement is returned for
`memory.plan_memory` to refuse with its table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Literal

from corepipe.errors import UserError
from corepipe.neuron.chips.hardware import Instance
from corepipe.neuron.chips.runtime_profile import ExpertParallel, RuntimeProfile
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.memory import DeploymentLimits, blocks_that_fit, measure
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import Experts
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.balance import stage_weights
from corepipe.neuron.timing.cost import CostModel
from corepipe.neuron.timing.rounds import Rounds
from corepipe.neuron.values import InputKind, weight_bytes

Mode = Literal["latency", "throughput", "auto"]

NEAR_BEST = 1.10
"""auto uses more cores only for more than this gain in time per token."""

CONTEXT = 512
"""Tokens of context at which placements are compared, or half of max_model_len if that is less."""


@dataclass(frozen=True, slots=True)
class RequestedDegrees:
    """The degrees that the user gave; None: choose."""

    pipeline: int | None = None
    tensor: int | None = None
    data: int | None = None
    expert: int | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A placement with its predicted time per token of a single request, and its tokens a second under full
    load.

    counts: the unit in place of tokens, for a model that runs once over its input.  of: the size of each of
    them.
    """

    placement: Placement
    seconds_per_token: float
    tokens_per_second: float
    counts: str = "token"
    of: str = ""

    def __str__(self) -> str:
        degrees = ", ".join(f"{name} {degree}" for name, degree in self.placement.degrees.items())
        milliseconds = self.seconds_per_token * 1e3
        rate = f"{self.tokens_per_second:.0f} {self.counts}s/s"
        return f"{degrees} ({milliseconds:.2f} ms a {self.counts}{self.of}, {rate})"


def resolve(
    mode: Mode,
    graph: Graph,
    instance: Instance,
    limits: DeploymentLimits,
    profile: RuntimeProfile,
    given: RequestedDegrees = RequestedDegrees(),
) -> tuple[Placement, str]:
    """Returns the placement, and a line with the reason and with the choice of the other modes.

    Raises UserError for a degree that the model cannot be cut by.
    """

    def asked(placement: Placement) -> str | None:
        return refuses_experts(graph, placement, profile, limits.max_num_seqs)

    if given.pipeline and given.tensor and given.data:
        placement = Placement(given.pipeline, given.tensor, given.data, given.expert or 1)
        return placement, "all degrees were given" + _note(instance, placement, asked(placement))
    chooser = _Chooser(graph, instance, limits, profile, given)
    replicas = chooser.replicas()
    if not replicas:
        return chooser.plain(), f"nothing that was tried fits {instance.name}"
    fastest = min(replicas, key=lambda e: e.seconds_per_token)
    widest = chooser.widest(replicas)
    match mode:
        case "latency":
            chosen, others = fastest, {"throughput": widest}
        case "throughput":
            chosen, others = widest, {"latency": fastest}
        case "auto":
            chosen, others = _fewest_cores_near(fastest, replicas), {"latency": fastest, "throughput": widest}
    apart = ", ".join(f"{name} would give {other}" for name, other in others.items() if other != chosen)
    beside = apart or f"{' and '.join(others)} would give the same"
    return (
        chosen.placement,
        f"{mode}: {chosen}; {beside}{_note(instance, chosen.placement, asked(chosen.placement))}",
    )


def refuses_experts(
    graph: Graph, placement: Placement, profile: RuntimeProfile, sequences: int
) -> str | None:
    """Returns why the software does not divide experts in this way, for batches of so many sequences (None:
    it does)."""
    if placement.expert == 1:
        return None
    if profile.expert_parallel is None:
        return f"{profile.name} divides no experts among cores"
    if placement.expert != placement.tensor:
        return "Neuron's software divides experts among all tensor ranks, and no other cores"
    mixtures = (op for op in graph.ops if isinstance(op, Experts))
    few = any(sequences * op.top_k < op.experts for op in mixtures)
    if profile.expert_parallel is ExpertParallel.FULL and few:
        return "NxD divides experts among cores only where a batch's rows take as many as there are"
    return None


def _note(instance: Instance, placement: Placement, why: str | None) -> str:
    if why is not None:
        return f"; emulation only: {why}"
    if placement.tensor in instance.tensor_degrees:
        return ""
    accepted = ", ".join(map(str, instance.tensor_degrees))
    return f"; emulation only: on {instance.family} the Neuron stack takes tensor {accepted}"


def _fewest_cores_near(fastest: Estimate, replicas: list[Estimate]) -> Estimate:
    near = (e for e in replicas if e.seconds_per_token <= NEAR_BEST * fastest.seconds_per_token)
    return min(near, key=lambda e: (e.placement.cores, e.seconds_per_token))


def compiler(
    graph: Graph, instance: Instance, profile: RuntimeProfile
) -> Callable[[Placement], tuple[Program, ...]]:
    """Returns a function that compiles the graph for a placement, with stages balanced by predicted time on
    the instance."""

    def compile_for(placement: Placement) -> tuple[Program, ...]:
        return compile_graph(graph, placement, stage_weights(graph, instance, profile, placement.pipeline))

    return compile_for


class _Chooser:
    """The candidate placements of one model on one instance, and their estimates."""

    def __init__(
        self,
        graph: Graph,
        instance: Instance,
        limits: DeploymentLimits,
        profile: RuntimeProfile,
        given: RequestedDegrees,
    ) -> None:
        self._graph = graph
        self._instance = instance
        self._limits = limits
        self._profile = profile
        self._given = given
        self._weights = sum(weight_bytes(w.shape, w.role, graph.format) for w in graph.weights())
        self._compile = cache(compiler(graph, instance, profile))

    def plain(self) -> Placement:
        """Returns the given degrees, and 1 for the others."""
        given = self._given
        return Placement(given.pipeline or 1, given.tensor or 1, given.data or 1, given.expert or 1)

    def replicas(self) -> list[Estimate]:
        """Returns estimates of the candidates that fit, with the given number of replicas, or one."""
        usual = list(self._fitting(self._shapes()))
        return usual or list(islice(self._fitting(self._large_shapes()), 1))

    def widest(self, replicas: list[Estimate]) -> Estimate:
        """Returns the estimate with as many replicas as fit, each on the fewest cores."""
        one = min(replicas, key=lambda e: (e.placement.cores, e.seconds_per_token))
        if self._given.data:
            return one
        shape = one.placement
        most = self._instance.cores // shape.cores
        wider = (replace(shape, data=data) for data in range(most, 1, -1))
        return next(self._fitting(wider), one)

    def _shapes(self) -> Iterator[Placement]:
        for pipeline in self._pipelines():
            for tensor in self._tensors():
                yield self._shape(pipeline, tensor)

    def _large_shapes(self) -> Iterator[Placement]:
        """Yields placements on ever more cores, for capacity, where no usual one fits."""
        most = min(self._graph.num_layers, self._instance.cores)
        pipelines = [self._given.pipeline] if self._given.pipeline else [*range(2, most + 1)]
        shapes = [self._shape(p, t) for p in pipelines for t in self._tensors()]
        yield from sorted(shapes, key=lambda shape: (shape.cores, -shape.tensor))

    def _shape(self, pipeline: int, tensor: int) -> Placement:
        return Placement(pipeline, tensor, self._given.data or 1, self._given.expert or 1)

    def _tensors(self) -> tuple[int, ...]:
        if self._given.tensor:
            return (self._given.tensor,)
        most, expert = self._graph.attention_heads, self._given.expert or 1
        degrees = (degree for degree in self._instance.tensor_degrees if degree <= most)
        return tuple(degree for degree in degrees if expert == 1 or expert % degree == 0)

    def _pipelines(self) -> tuple[int, ...]:
        if self._given.pipeline:
            return (self._given.pipeline,)
        most = min(self._graph.num_layers, self._instance.cores)
        if self._instance.chip.core.resident_weight_bytes is None:
            return (1,)
        fewest = (-(-most // layers) for layers in range(most, 0, -1))
        return tuple(dict.fromkeys(min(most, n + head) for n in fewest for head in (0, 1)))

    def _fitting(self, shapes: Iterable[Placement]) -> Iterator[Estimate]:
        for shape in shapes:
            enough = shape.cores <= self._instance.cores and self._holds_weights(shape)
            if enough and self._can_be_cut(shape):
                cores = measure(self._programs(shape), self._limits)
                blocks = blocks_that_fit(cores, shape.data, self._instance, self._profile.kv_budget)
                if blocks >= self._limits.blocks_per_sequence:
                    yield self._estimate(shape)

    def _holds_weights(self, shape: Placement) -> bool:
        """Returns True if the weights fit the memory of the cores, however they are cut: avoids compiling in
        vain."""
        banks = self._instance.bank_of(shape.cores - 1) + 1
        return shape.data * self._weights <= banks * self._instance.bank_bytes

    def _can_be_cut(self, shape: Placement) -> bool:
        """Returns True if the model can be cut so.  A degree that the user gave passes: its error is reported
        later."""
        if self._given.tensor or self._given.expert:
            return True
        try:
            self._programs(shape)
            if self._limits.beside is not None:
                self._limits.beside.check(shape.tensor)
        except UserError:
            return False
        return True

    def _programs(self, shape: Placement) -> tuple[Program, ...]:
        return self._compile(replace(shape, data=1))

    def _estimate(self, shape: Placement) -> Estimate:
        """Estimates a placement; for the tokens a second with all sequences running, in the best number of
        micro-batches."""
        sequences = self._limits.max_num_seqs
        cost = CostModel(self._programs(shape), self._instance, self._profile, shape.data, batch=sequences)
        if not self._graph.causal:
            whole = [(0, self._graph.max_positions)]
            one, all_ = (cost.latency(StepShape.of(whole * n, n)) for n in (1, sequences))
            texts = any(given.kind is InputKind.TOKENS for given in self._graph.inputs)
            of = f" of {self._graph.max_positions} tokens" if texts else ""
            return Estimate(shape, one, shape.data * sequences / all_, "request", of)
        rounds = Rounds(cost, self._profile)
        context = min(CONTEXT, self._limits.max_model_len // 2)
        alone, full = rounds.best(1, context), rounds.best(sequences, context)
        return Estimate(shape, alone.seconds, shape.data * sequences / full.seconds)
