"""The host's part of a deployment: the Programs that it computes, and the memory of a KV block of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corepipe.engine.assembly.device_plan import DevicePlan, batch_tokens, graph_of
from corepipe.engine.assembly.draft_plan import draft_graph
from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.models.registry import Model
from corepipe.models.tasks import TaskInfo
from corepipe.neuron.compile.compiler import compile_graph, state_bytes
from corepipe.neuron.compile.layer_groups import (
    HYBRID,
    ONE_GROUP,
    LayerGroups,
    block_positions,
    bytes_of_position,
    group_layers,
)
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.formats import DType
from corepipe.neuron.graph import Graph
from corepipe.neuron.values import InputKind
from corepipe.scheduler.windowed_kv_cache import blocks_of_all


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The Programs that the host computes: the served model, cut as on the device, or whole where another
    model is timed.

    layer_groups: groups of layers whose KV blocks are kept for as long. draft: the plan of the draft model,
    if there is one: its keys and values are in blocks of the same numbers.
    """

    graph: Graph
    placement: Placement
    programs: tuple[Program, ...]
    layer_groups: LayerGroups = ONE_GROUP
    draft: HostPlan | None = None

    @property
    def keeps_state(self) -> bool:
        """True where the graph keeps any state of a sequence."""
        return any(True for _ in self.graph.states())

    @property
    def state_bytes(self) -> int:
        """Bytes of the state that the recurrent layers of a replica keep of a sequence."""
        return sum(map(state_bytes, self.programs))

    def block_bytes(self, config: EngineConfig) -> int:
        """Returns the bytes of one KV block of a replica, the draft model's with it, or, where there are
        none, of one sequence's state."""
        if self.graph.is_recurrent and not self.graph.is_hybrid:
            return self.state_bytes
        dtype = DType.INT8 if config.kv_cache_dtype == "int8" else self.graph.format.compute
        groups = self.layer_groups
        own = config.block_size * sum(bytes_of_position(program, groups, dtype) for program in self.programs)
        return own if self.draft is None else own + self.draft.block_bytes(config)

    def sequence_blocks(self, config: EngineConfig) -> int:
        """Returns the most KV blocks that the longest sequence holds."""
        windows, chunk = self.layer_groups.windows, batch_tokens(config, self.graph)
        return blocks_of_all(
            windows, self.graph.max_positions, chunk, block_positions(self.graph, config.block_size)
        )


def plan_host(
    config: EngineConfig, model: Model, device: DevicePlan, task: TaskInfo, draft: Model | None = None
) -> HostPlan:
    """Returns the Programs that the host runs; a model that is served while another one is timed is not cut.
    Where the device's decisions count, all layers keep KV blocks as its software does; they also do where
    there is a `draft` model, which has the same blocks.

    Raises UserError where the model that is timed is not of the served one's kind, and where the draft model
    cannot draft for the served one.
    """
    if config.timing_model is None:
        apart = not faithful(config) and draft is None and not device.graph.is_hybrid
        groups = group_layers(device.graph) if apart else _whole(device.graph)
        plan = HostPlan(device.graph, device.placement, device.programs, groups)
        return plan if draft is None else replace(plan, draft=_draft_beside(device))
    longest = model.max_positions if task.images else min(device.graph.max_positions, model.max_positions)
    graph = graph_of(config.model_copy(update={"max_model_len": None}), model, task, longest)
    if _kind(device.graph) != _kind(graph):
        raise of_another_kind(device.graph.name, _kind(graph))
    whole = Placement(data=device.placement.data)
    plan = HostPlan(graph, whole, compile_graph(graph, Placement()), _whole(graph))
    if draft is None:
        return plan
    smaller = draft_graph(draft, graph)
    return replace(plan, draft=HostPlan(smaller, whole, compile_graph(smaller, Placement())))


def _whole(graph: Graph) -> LayerGroups:
    """Keeps whole sequences in all layers with attention."""
    return HYBRID if graph.is_hybrid else ONE_GROUP


def _draft_beside(device: DevicePlan) -> HostPlan | None:
    """Returns the draft model as it is cut on the device."""
    if device.draft is None:
        return None
    tensor, data = device.placement.tensor, device.placement.data
    return HostPlan(device.draft.graph, Placement(1, tensor, data), device.draft.programs(tensor))


def _kind(graph: Graph) -> str:
    """Returns the kind that a model must be of to be timed in the place of this one."""
    if graph.is_decoder:
        kind = "recurrent decoder" if graph.is_recurrent else "decoder"
        kind = f"hybrid {kind}" if graph.is_hybrid else kind
        return kind if graph.generates else f"{kind} whose last token is a text's vector"
    reads = {given.kind for given in graph.inputs}
    if InputKind.PATCHES in reads:
        return f"encoder of images of {graph.max_positions} rows"
    return "encoder of texts" if InputKind.TOKENS in reads and not graph.causal else "other model"


def of_another_kind(name: str, kind: str) -> UserError:
    """Returns the error of a model that cannot be timed in the place of the served one."""
    return UserError(f"--timing-model {name}: it is no {kind}, as the served model is", "timing_model")


def faithful(config: EngineConfig) -> bool:
    """Tells whether the device's limits matter more than the host's memory."""
    return config.clock != "host" or config.timing_model is not None
