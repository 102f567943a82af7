"""Predicted times of the parts of a graph, to balance the stages of a pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from corepipe.neuron.chips.constants import Constants
from corepipe.neuron.chips.engines import Cost
from corepipe.neuron.chips.hardware import Instance
from corepipe.neuron.chips.rates import core_rates, read_share
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import Op
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.tables import CostTable
from corepipe.neuron.values import WeightRole, weight_bytes

DECODE = StepShape.decode(sequences=1, context=256)
"""The step that stages are balanced for, unless another is given."""


def stage_weights(
    graph: Graph, instance: Instance, profile: RuntimeProfile, stages: int = 1, shape: StepShape = DECODE
) -> tuple[float, ...]:
    """Returns predicted seconds of a step on one core for each part of the graph, to balance a pipeline by.

    As `placement.cut_layers` takes them: the part before the layers, each layer, the part after them.  A
    layer shares its core with an even part of the layers; the part after them has its own core.
    """
    parts: dict[int, list[Op]] = {layer: [] for layer in range(-1, graph.num_layers + 1)}
    for op in graph.ops:
        parts[op.layer].append(op)
    constants = profile.constants_of(instance.chip.core.version)
    known: dict[frozenset[tuple[Cost, int]], float] = {}
    sharing = -(-graph.num_layers // stages)
    return tuple(
        _part_seconds(
            ops, graph, instance, constants, shape, known, sharing if 0 <= layer < graph.num_layers else 1
        )
        for layer, ops in parts.items()
    )


def _part_seconds(
    ops: Sequence[Op],
    graph: Graph,
    instance: Instance,
    constants: Constants,
    shape: StepShape,
    known: dict[frozenset[tuple[Cost, int]], float],
    sharing: int,
) -> float:
    """Returns seconds of consecutive Ops on a core that holds `sharing` such parts; equal parts are timed
    once."""
    matrices = [spec for op in ops for spec in op.weights if spec.role is WeightRole.MATRIX]
    held = sum(weight_bytes(spec.shape, spec.role, graph.format) for spec in matrices)
    share = read_share(instance, sharing * held)
    rates = core_rates(instance, graph.format, (0,), sharing=1, read_share=share, constants=constants)
    costs = Counter(op.cost(graph.format, rates) for op in ops)
    key = frozenset(costs.items())
    if key not in known:
        known[key] = CostTable(costs).seconds(shape)
    return known[key]
