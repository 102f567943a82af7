"""Groups of layers whose KV blocks have one size."""

from __future__ import annotations

from collections import Counter

import pytest

from corepipe.models import registry
from corepipe.neuron.compile.compiler import compile_graph, kv_bytes_per_token
from corepipe.neuron.compile.layer_groups import (
    KEY_BLOCK,
    ONE_GROUP,
    bytes_of_position,
    group_layers,
    places,
    slots,
)
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph

WINDOWED = {
    # layers with a window and without, and layers of a group
    "gemma-3-270m": (15, 3, 3),
    "gemma-3-1b": (22, 4, 4),
    "gemma-3-4b": (29, 5, 5),
    "gemma-2-2b": (13, 13, 13),
    "mistral-7b": (32, 0, 32),
    "gpt-oss-20b": (12, 12, 12),
}
POSITIONS = 8192


def graph_of(model: str, positions: int = POSITIONS) -> Graph:
    return registry.architecture(model).graph(FORMATS["bf16"], positions)


@pytest.mark.parametrize("model", WINDOWED)
def test_published_models(model: str) -> None:
    windowed, whole, size = WINDOWED[model]
    graph = graph_of(model)
    groups = group_layers(graph)
    windows = {op.layer: op.state.window for op in graph.ops if op.state is not None}
    for layer, window in windows.items():
        reach = groups.windows[groups[layer]]
        assert reach == (None if window is None else window + KEY_BLOCK - 1)
    sizes = Counter(groups[layer] for layer in range(graph.num_layers))
    assert max(sizes.values()) == size
    assert len(sizes) == len(groups.windows) == -(-windowed // size) + -(-whole // size)


@pytest.mark.parametrize("model", WINDOWED)
@pytest.mark.parametrize("pipeline", [1, 2])
def test_no_two_layers_of_a_group_have_one_place(model: str, pipeline: int) -> None:
    graph = graph_of(model)
    groups = group_layers(graph)
    programs = compile_graph(graph, Placement(pipeline=pipeline))
    for program in programs:
        (layers,) = places(program, groups).values()
        assert set(layers) == set(program.layers)
        assert len(set(layers.values())) == len(layers)
        least = -(-len(layers) // len(groups.windows))
        assert least <= slots(layers) <= least + 1, "each stage has about as many of each group"
    kept, dtype = sum(map(kv_bytes_per_token, programs)), graph.format.compute
    held = len(groups.windows) * sum(bytes_of_position(program, groups, dtype) for program in programs)
    assert kept <= held <= (1.34 if pipeline > 1 else 1.08) * kept


def test_a_window_that_no_sequence_outgrows_is_none() -> None:
    assert group_layers(graph_of("gemma-3-270m", 512 + KEY_BLOCK - 1)).windows == (None,)
    assert len(group_layers(graph_of("gemma-3-270m", 512 + KEY_BLOCK)).windows) == 6
    assert group_layers(graph_of("llama-3.2-1b")).windows == (None,)


def test_what_keeps_nothing_has_one_group() -> None:
    assert group_layers(registry.architecture("all-minilm-l6-v2").graph(FORMATS["bf16"], 256)) is ONE_GROUP
