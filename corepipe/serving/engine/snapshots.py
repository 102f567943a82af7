"""How many states of a recurrent model's sequences stay to be found, and how far apart they are."""

from __future__ import annotations

from corepipe.neuron.graph import Graph
from corepipe.serving.config import EngineConfig
from corepipe.serving.engine.host_plan import faithful

CACHE_SHARE = 4
"""One state in so many stays when no sequence has it: a prefix is found by its last one alone, so that few do
much; but each takes as much as a sequence."""

CLOSEST, FARTHEST = 256, 1024
"""Positions from one to the next: a chunk of a prompt ends there, which must not make chunks small; and what
is behind the last one is computed again."""


def keeps_snapshots(config: EngineConfig, graph: Graph) -> bool:
    """Whether any stay: Neuron software keeps none, so where the device's decisions count there are none."""
    wanted = config.prefix_cache and not faithful(config)
    return wanted and graph.is_recurrent and graph.max_positions > CLOSEST


def most_states(sequences: int) -> int:
    """Blocks for the states of so many sequences, and for those that stay."""
    return -(-sequences * CACHE_SHARE // (CACHE_SHARE - 1))


def kept_states(blocks: int) -> int:
    """How many of these stay when no sequence has them."""
    return max(1, blocks // CACHE_SHARE)


def state_span(config: EngineConfig, graph: Graph, blocks: int) -> int | None:
    """Positions from one to the next, as far apart as the longest sequence's need be to stay all; None: none
    stay."""
    if not keeps_snapshots(config, graph):
        return None
    span = CLOSEST
    while span < FARTHEST and span * kept_states(blocks) < graph.max_positions:
        span *= 2
    return span if span < graph.max_positions else None
