"""The emulated side of a deployment: the model that is timed, the placement of its parts, and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corepipe.engine.assembly.draft_plan import no_way_back, plan_draft
from corepipe.engine.assembly.op_kernels import described_kernels, settle_kernels, with_kernels
from corepipe.engine.batch.encoding import Encoding
from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.models.registry import Architecture
from corepipe.models.tasks import Task, TaskInfo
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.chips.hardware import Instance, hypothetical
from corepipe.neuron.chips.profiles import profile
from corepipe.neuron.chips.runtime_profile import RuntimeProfile, graphs_of
from corepipe.neuron.compile.layer_groups import block_positions
from corepipe.neuron.compile.memory import CoreMemory, DeploymentLimits, Draft, MemoryPlan, plan_memory
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.formats import FORMATS, TIMED_FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.timing import modes
from corepipe.neuron.timing.cost import CostModel
from corepipe.neuron.timing.description import describe
from corepipe.neuron.timing.draft_times import DraftTimes
from corepipe.neuron.timing.otherwise import spanning
from corepipe.neuron.timing.timeline import Timeline
from corepipe.neuron.timing.uncertainty import (
    LEVEL,
    Figure,
    Interval,
    Point,
    Setup,
    architecture_of,
    interval,
)
from corepipe.neuron.values import InputKind, OutputKind
from corepipe.scheduler.next_batch import Policy, policy
from corepipe.scheduler.scheduler import SchedulerConfig

DEFAULT_MODEL_LEN = 8192
"""Longest sequence of a model that takes more, unless the config sets another."""

HOST_DRAFT_ROWS = 14
"""Rows of a batch with drafts on the host, whose weights are read once for so many (docs/kernels.md); on a
device drafts cost less the more are in a batch, and every request has as many as are configured."""

HOST_PROFILE, DEVICE_PROFILE, ONCE_PROFILE = "async", "vllm-neuron", "traced"
"""The profiles of a server that runs as fast as the host can, and of one that behaves like the deployment to
come: of a model that generates, and of one that is run once over its input."""


@dataclass(frozen=True, slots=True)
class StateBlocks:
    """The blocks of sequences' states: `beside` of them beside KV blocks (0: there are none of these, or no
    states), one place for each `span` positions (None: one for a whole sequence); whether states `stay` in
    the prefix cache, and how many are `kept` when no sequence has them (None: all)."""

    beside: int = 0
    span: int | None = None
    stay: bool = False
    kept: int | None = None


NO_STATES = StateBlocks()
"""The blocks of a model that keeps no states beside KV blocks."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """A model on the cores of an instance. `programs` are those of one replica; all replicas are alike.

    batch: sequences that its decode graphs are compiled for; chunk: tokens of a prefill step. draft: a draft
    model on the same cores.
    """

    graph: Graph
    instance: Instance
    placement: Placement
    reason: str
    programs: tuple[Program, ...]
    memory: MemoryPlan
    profile: RuntimeProfile
    batch: int
    chunk: int | None = None
    draft: Draft | None = None

    @property
    def encoding(self) -> Encoding | None:
        """The encoding of its inputs, where it generates nothing; None: it generates."""
        return None if self.graph.generates else Encoding.of(self.graph)

    def timeline(self, replica: int) -> Timeline:
        """Returns the timeline of an idle replica."""
        return Timeline(self._cost(replica), draft=self._draft_times(replica))

    def timelines(self) -> list[Timeline]:
        """Returns the timelines of all replicas, idle, which share the times of steps where their cores are
        as fast."""
        costs, draft = self._costs(), self._draft_times(0)
        return [
            Timeline(cost, draft=None if draft is None else DraftTimes(draft.cost.on_replica(replica)))
            for replica, cost in enumerate(costs)
        ]

    def _costs(self) -> Sequence[CostModel]:
        """Returns the cost models of all replicas."""
        first = self._cost(0)
        return [first.on_replica(replica) for replica in range(self.placement.data)]

    def _cost(self, replica: int) -> CostModel:
        return self._timed_with(self.profile, replica)

    def _draft_times(self, replica: int) -> DraftTimes | None:
        if self.draft is None:
            return None
        programs = self.draft.programs(self.placement.tensor)
        plain = self.profile.with_kernels(None)  # kernels are of the other model
        cost = CostModel(programs, self.instance, plain, self.placement.data, replica)
        return DraftTimes(cost.with_batch(self.batch, self.chunk))

    def interval(
        self, figure: Figure, tokens: int, *, load: bool = True, tail: bool = False, level: float = LEVEL
    ) -> Interval:
        """Returns by how much a figure of this deployment may differ from its prediction, for sequences of so
        many tokens."""
        setup = Setup(architecture_of(self.graph), self.instance.name, self.profile, self.placement)
        found = interval(Point.of(figure, setup, tokens, load=load, tail=tail), self.profile, level)
        return spanning(found, self.profile, self._timed_with, figure, tokens)

    def _timed_with(self, profile: RuntimeProfile, replica: int = 0) -> CostModel:
        cost = CostModel(self.programs, self.instance, profile, self.placement.data, replica)
        return cost.with_batch(self.batch, self.chunk)

    def intervals(self) -> dict[str, object]:
        """Returns the intervals of each figure under load, for the longest sequences, as /v1/placement serves
        them."""
        longest = self.graph.max_positions
        if not self.graph.causal:
            return {Figure.BATCH.value: self.interval(Figure.BATCH, longest, load=False).as_json()}
        figures = (figure for figure in Figure if figure is not Figure.BATCH)
        return {figure.value: self.interval(figure, longest).as_json() for figure in figures}

    def describe(self) -> dict[str, object]:
        """Returns the description that /v1/placement serves."""
        return {
            "emulated": True,
            "format": self.graph.format.name,
            "format_on_device": self.instance.support(self.graph.format).value,
            "instance": self.instance.name,
            **hypothetical(self.instance),
            "logical_neuroncore_config": self.instance.lnc,
            **self._part(),
            "runtime_profile": self.profile.name,
            **self.placement.degrees,
            "reason": self.reason,
            "intervals": self.intervals(),
            **self._buckets(),
            **self._drafts(),
            **described_kernels(self.profile, self.programs, self.instance),
            "cores": [
                {**core, "memory_bytes": self._memory(memory)}
                for core, memory in zip(describe(self.programs), self.memory.cores, strict=True)
            ],
        }

    def _part(self) -> dict[str, object]:
        """Returns the ids of its cores, where other models have other cores of the instance."""
        if self.instance.part is None:
            return {}
        first = self.instance.part.start
        return {"neuroncore_ids": [*range(first, first + self.placement.cores)]}

    def _drafts(self) -> dict[str, object]:
        """Returns the draft model, and its cores of a replica."""
        if self.draft is None:
            return {}
        return {"draft_model": {"model": self.draft.graph.name, "cores": [*range(self.placement.tensor)]}}

    def _buckets(self) -> dict[str, object]:
        """Returns the graphs that are compiled, where whole inputs are padded to them."""
        if self.graph.causal:
            return {}
        lengths, batches = graphs_of(self.profile, self.graph.max_positions, self.batch)
        if any(given.kind is InputKind.PATCHES for given in self.graph.inputs):
            lengths = lengths[-1:]  # all images are of one size
        return {"buckets": {"lengths": lengths, "batches": batches}}

    def _memory(self, core: CoreMemory) -> dict[str, int]:
        """Returns the memory of a core: KV blocks and states are allocated from the start, used or not."""
        kv = core.block * self.memory.num_blocks + core.states
        return {"weights": core.weights, "kv_cache": kv, "buffers": core.buffers}


def plan_device(config: EngineConfig, model: Architecture, draft: Architecture | None = None) -> DevicePlan:
    """Places `model` as `config` says; reads no weights. draft: the draft model, where the caller has it.

    Raises UserError for an instance or a profile that does not exist, for a task that the model does not do,
    for more positions than the model has, and for a model that does not fit the instance.
    """
    instance = find_instance(config.instance)
    if config.lnc is not None:
        instance = instance.with_lnc(config.lnc)
    if config.first_core or config.cores is not None:
        instance = _part(config, instance)
    graph = graph_of(config, model, timed_task(config.task, model))
    if config.max_batch_delay and graph.generates:
        raise UserError(
            f"--max-batch-delay: {graph.name} generates, and its batches take a request as soon as it comes",
            "max_batch_delay",
        )
    if config.speculative_config is not None:
        _check_speculation(config, graph)
    draft_plan = plan_draft(config, graph, draft)
    runtime = with_kernels(config, graph, runtime_profile(config, graph))
    limits = _limits(config, graph, runtime, draft_plan)
    degrees = modes.RequestedDegrees(config.pipeline, config.tensor, config.data, config.expert)
    placement, reason = modes.resolve(config.mode, graph, instance, limits, runtime, degrees)
    cut = modes.compiler(graph, instance, runtime)
    programs = cut(placement)
    memory = plan_memory(programs, placement, instance, limits, cut)
    batch, chunk = config.max_num_seqs, batch_tokens(config, graph)
    settle_kernels(config, programs, instance, runtime, rows=chunk)
    return DevicePlan(graph, instance, placement, reason, programs, memory, runtime, batch, chunk, draft_plan)


def _check_speculation(config: EngineConfig, graph: Graph) -> None:
    """Raises UserError where drafts are not possible, and where an acceptance is assumed of the host."""
    why = no_way_back(graph)
    on_host = config.clock == "host" and config.timing_model is None
    if not graph.generates:
        why = f"{graph.name} generates nothing, so that it needs no drafts"
    elif why is None and on_host and _has_synthetic_rates(config):
        why = "an assumed acceptance makes the emulated device faster, not the host; add --clock device"
    if why is not None:
        raise UserError(f"--speculative-config: {why}", "speculative_config")


def _part(config: EngineConfig, instance: Instance) -> Instance:
    """Returns the requested cores of the instance. Raises UserError where it has no such cores."""
    left = instance.cores - config.first_core
    count = left if config.cores is None else config.cores
    if not 0 < count <= left:
        raise UserError(
            f"first_core {config.first_core}, cores {config.cores}: {instance.name} has {instance.cores} "
            "NeuronCores, counted from 0",
            "cores",
        )
    return instance.with_part(config.first_core, count)


def _limits(
    config: EngineConfig, graph: Graph, runtime: RuntimeProfile, beside: Draft | None
) -> DeploymentLimits:
    size = block_positions(graph, config.block_size)
    sequence = -(-graph.max_positions // size)
    most = config.num_blocks or config.max_num_seqs * sequence
    return DeploymentLimits(
        graph.max_positions,
        config.max_num_seqs,
        batch_tokens(config, graph),
        size,
        most,
        runtime.kv_budget,
        beside,
        config.lora_slots * config.max_lora_rank,
    )


def timed_task(requested: str, model: Architecture) -> TaskInfo | None:
    """Returns the task that is timed; None: the model's own output, as for models of images without named
    classes, and for those that predict masked words.

    Raises UserError for a task that the config names, and that the model does not do.
    """
    if requested != "auto":
        return model.task(requested)
    try:
        found = model.task()
    except UserError:
        return None
    return None if found.task is Task.EMBED and _is_masked_lm(model.graph(FORMATS["bf16"])) else found


def _is_masked_lm(graph: Graph) -> bool:
    return not graph.causal and graph.outputs[0].kind is OutputKind.LOGITS


def graph_of(
    config: EngineConfig, model: Architecture, task: TaskInfo | None, most: int = DEFAULT_MODEL_LEN
) -> Graph:
    """Returns a model's graph for a task, for the configured number of positions, or else for as many as
    texts may have.

    Raises UserError for a part of an image's positions.
    """
    if task is not None and task.images is not None:
        if config.max_model_len not in (None, task.images.rows):
            raise UserError(
                f"--max-model-len {config.max_model_len}: {model.name} reads whole images, of "
                f"{task.images.rows} rows; leave it out",
                "max_model_len",
            )
        return model.graph(TIMED_FORMATS[config.format], task.images.rows, task)
    longest = model.max_positions if task is None else min(task.max_tokens, model.max_positions)
    return model.graph(TIMED_FORMATS[config.format], config.max_model_len or min(longest, most), task)


def batch_tokens(config: EngineConfig, graph: Graph) -> int:
    """Returns the tokens of a batch: as configured, but no fewer than the longest text that is computed
    whole; of images, which are all of one size, as many as the batch may have images."""
    configured, longest = config.max_num_batched_tokens, graph.max_positions
    if graph.causal:
        return configured
    texts = any(given.kind is InputKind.TOKENS for given in graph.inputs)
    return max(configured, longest if texts else config.max_num_seqs * longest)


def runtime_profile(config: EngineConfig, graph: Graph) -> RuntimeProfile:
    """Returns the device's software stack. Raises UserError for a name that is neither a profile's nor its
    file's."""
    if config.clock == "host" and config.timing_model is None:
        return profile(config.profile or HOST_PROFILE)
    return profile(config.profile or (DEVICE_PROFILE if graph.causal else ONCE_PROFILE))


def batch_policy(config: EngineConfig, device: DevicePlan) -> Policy:
    """Returns the configured policy, or the profile's."""
    return policy(config.policy or device.profile.policy)


def scheduler_config(
    config: EngineConfig,
    device: DevicePlan,
    blocks: int,
    max_model_len: int,
    max_cached_blocks: int | None,
    windows: tuple[int | None, ...] = (None,),
    states: StateBlocks = NO_STATES,
) -> SchedulerConfig:
    """Returns the limits of one replica with `blocks` KV blocks; a device's software has its layers in one
    group.

    A prefix of a recurrent model's sequence is found again where states stay: otherwise only the latest state
    exists.
    """
    keeps, recurrent = any(True for _ in device.graph.states()), device.graph.is_recurrent
    only_states = recurrent and not device.graph.is_hybrid
    size = max_model_len if only_states else config.block_size
    return SchedulerConfig(
        num_blocks=blocks,
        block_size=states.span if only_states and states.span is not None else size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=batch_tokens(config, device.graph),
        max_model_len=max_model_len,
        prefix_cache=config.prefix_cache and keeps and (not recurrent or states.stay),
        max_queued_requests=config.max_queued_requests,
        max_queued_tokens=config.max_queued_tokens,
        stages=device.placement.pipeline,
        max_cached_blocks=max_cached_blocks,
        whole_prompts=not device.graph.causal,
        keeps_state=keeps,
        windows=windows,
        state_span=states.span,
        num_states=states.beside,
        max_cached_states=states.kept,
        draft_rows=HOST_DRAFT_ROWS if config.clock == "host" and not _has_synthetic_rates(config) else None,
    )


def _has_synthetic_rates(config: EngineConfig) -> bool:
    """Tells whether drafts exist on the device alone."""
    return config.speculative_config is not None and config.speculative_config.synthetic_rates is not None
