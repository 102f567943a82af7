"""The states of a recurrent model's sequences that stay in the prefix cache: how many, and how far apart."""

from __future__ import annotations

from corepipe.engine.assembly.device_plan import StateBlocks
from corepipe.engine.assembly.host_plan import faithful
from corepipe.engine.config import EngineConfig
from corepipe.neuron.graph import Graph

CACHE_SHARE = 4
"""One state in so many stays when no sequence has it: a prefix is found by its last state alone, so that a
few are enough; but each takes as much memory as a sequence."""

CLOSEST, FARTHEST = 256, 1024
"""Positions from one state to the next: a chunk of a prompt ends there, which must not make chunks small; and
the positions behind the last state are computed again."""


def keeps_snapshots(config: EngineConfig, graph: Graph) -> bool:
    """Tells whether any states stay: Neuron software keeps none, so there are none where the device's
    decisions count."""
    cached = config.prefix_cache and not faithful(config)
    return cached and graph.is_recurrent and graph.max_positions > CLOSEST


def most_states(sequences: int) -> int:
    """Returns the blocks for the states of so many sequences, and for those that stay."""
    return -(-sequences * CACHE_SHARE // (CACHE_SHARE - 1))


def states_beside(config: EngineConfig, graph: Graph, room: int) -> int:
    """Returns the blocks of states of a hybrid model's replica, beside its KV blocks, where there is room for
    so many; 0 for any other model.

    Where the device's decisions count, no sequence may wait for a block: sequences that leave keep theirs for
    a while.
    """
    if not graph.is_hybrid:
        return 0
    if faithful(config):
        return 2 * config.max_num_seqs
    wanted = most_states(config.max_num_seqs) if keeps_snapshots(config, graph) else config.max_num_seqs
    return max(1, min(wanted, room))


def state_blocks(config: EngineConfig, graph: Graph, blocks: int, beside: int) -> StateBlocks:
    """Returns how a replica with so many blocks, or with so many states beside them, keeps states."""
    kept = max(1, (beside or blocks) // CACHE_SHARE)
    span = _span(graph, kept) if keeps_snapshots(config, graph) else None
    if not beside:
        return StateBlocks(0, span, stay=span is not None, kept=kept)
    size = config.block_size
    return StateBlocks(beside, -(-(span or graph.max_positions) // size) * size, span is not None, kept)


def _span(graph: Graph, kept: int) -> int | None:
    """Returns the positions from one state that stays to the next, as far apart as needed for so many to
    cover the longest sequence; None: none stays."""
    span = CLOSEST
    while span < FARTHEST and span * kept < graph.max_positions:
        span *= 2
    return span if span < graph.max_positions else None
