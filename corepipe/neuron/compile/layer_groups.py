"""Groups of layers, each with KV blocks of its own: layers with a window keep less of a sequence.

All groups take their blocks from one pool, so a block has the same size in each: it is that of `size` layers,
and a group with fewer leaves the rest unused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from corepipe.neuron.compile.program import Program
from corepipe.neuron.formats import DType
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops.base import Op
from corepipe.neuron.values import StateKind

KEY_BLOCK = 64
"""Keys that the attention kernels process together, at positions that are multiples of it."""

MOST_GROUPS = 8
"""Largest number of groups: each sequence has a block table per group, which every step makes, copies and
checks."""


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """The groups of the layers of a model.

    windows: for each group, how many of the latest positions its layers need blocks for (None: all).
    of_layer: the group of each layer that is not in the first one.
    states: the number of the block table of a sequence that holds the states of recurrent layers.
    """

    windows: tuple[int | None, ...] = (None,)
    of_layer: Mapping[int, int] = field(default_factory=dict)
    states: int = 0

    def __getitem__(self, layer: int) -> int:
        return self.of_layer.get(layer, 0)


ONE_GROUP = LayerGroups()
"""One group: all layers keep whole sequences."""

HYBRID = LayerGroups(states=1)
"""One group of attention layers that keep whole sequences, and a second block table for states."""


def group_layers(graph: Graph) -> LayerGroups:
    """Groups layers by window, in groups of a size that leaves the least memory unused.

    A window that no sequence outgrows counts as none.  Layers with one window that fill several groups are
    dealt to them in turn, so that each stage of a pipeline has about as many of each.
    """
    kinds: dict[int | None, list[int]] = {}
    for op in graph.ops:
        if op.state is not None and op.state.kind is StateKind.TOKENS:
            kinds.setdefault(_reach(op.state.window, graph.max_positions), []).append(op.layer)
    if not kinds:
        return ONE_GROUP
    size = _size([len(layers) for layers in kinds.values()])
    windows: list[int | None] = []
    of_layer: dict[int, int] = {}
    for window, layers in kinds.items():
        count = -(-len(layers) // size)
        of_layer |= {layer: len(windows) + place % count for place, layer in enumerate(layers)}
        windows += [window] * count
    return LayerGroups(tuple(windows), of_layer)


def _reach(window: int | None, max_positions: int) -> int | None:
    """Returns the positions that are read: attention reads the whole block of keys of which a row needs
    one."""
    if window is None or window + KEY_BLOCK > max_positions:
        return None
    return window + KEY_BLOCK - 1


def _size(counts: Sequence[int]) -> int:
    """Returns the layers per group, for the number of layers of each kind."""

    def groups(size: int) -> int:
        return sum(-(-count // size) for count in counts)

    most = max(MOST_GROUPS, len(counts))
    sizes = [size for size in range(1, max(counts) + 1) if groups(size) <= most]
    return min(sizes, key=lambda size: (groups(size) * size, groups(size)))


def block_positions(graph: Graph, asked: int) -> int:
    """Returns the positions per block: `asked`, or the longest sequence where nothing is kept per token and a
    block holds a sequence's state."""
    return graph.max_positions if graph.is_recurrent and not graph.is_hybrid else asked


class LayerSlot(NamedTuple):
    """The group of a layer, and the layer's number among those of the group in one cache."""

    group: int
    slot: int


Heads = tuple[int, int, int]
"""Key/value heads, the elements of each, and how many elements of a key are also its value."""


def places(program: Program, groups: LayerGroups) -> dict[Heads, dict[int, LayerSlot]]:
    """Returns the slots of a core's layers in its caches: for each kind of heads, by layer."""
    taken: Counter[tuple[Heads, int]] = Counter()
    found: dict[Heads, dict[int, LayerSlot]] = {}
    for op in program.ops:
        if op.state is not None and _pages(op):
            heads, group = (*op.state.keys, op.state.shared), groups[op.layer]
            found.setdefault(heads, {})[op.layer] = LayerSlot(group, taken[heads, group])
            taken[heads, group] += 1
    return found


def _pages(op: Op) -> bool:
    """Returns True if the Op keeps data per token."""
    return op.state is not None and op.state.kind is not StateKind.SEQUENCE


def slots(layers: Mapping[int, LayerSlot]) -> int:
    """Returns the layers per block of a cache: those of the group with the most."""
    return 1 + max(place.slot for place in layers.values())


def bytes_of_position(program: Program, groups: LayerGroups, dtype: DType) -> int:
    """Returns the bytes of keys and values of one position of a block on a core, used or not, kept as
    `dtype`."""
    kept = {op.layer: op.state.nbytes(dtype) for op in program.ops if op.state is not None and _pages(op)}
    return sum(slots(layers) * kept[min(layers)] for layers in places(program, groups).values())
