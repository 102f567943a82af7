"""Programs: the compiler's result for one NeuronCore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError
from corepipe.neuron.axes import Axis, AxisShard, HeadLayout, cut
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import first_refusal
from corepipe.neuron.values import GraphOutput, Value, WeightSpec

if TYPE_CHECKING:  # an Op uses the classes of this module
    from corepipe.neuron.ops.base import Op

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WeightShard:
    """The part of `spec` that a core holds: one AxisShard for each dimension."""

    spec: WeightSpec
    axes: tuple[AxisShard, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(a.width for a in self.axes)


@dataclass(frozen=True, slots=True)
class Program:
    """One core's part of a Graph.  Ops have local shapes; collectives stand where values cross cores.

    `core` is the index within the replica: stage * cores of a stage + rank.  `layers` are the decoder layers
    whose KV cache this core holds.  `shards` maps a weight's name to the core's part of it, `axes` an axis of
    the graph to the core's part.  `outputs` are the graph's outputs on this core; every core of a tensor
    group has them.
    `tensor`: how many neighbours share heads and columns (None: all of a stage); in a stage with more cores,
    among which experts are divided, each group of so many cores has all heads and columns.
    """

    core: int
    stage: int
    rank: int
    format: Format
    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    shards: dict[str, WeightShard]
    axes: dict[Axis, AxisShard]
    layers: range
    max_positions: int
    outputs: tuple[GraphOutput, ...] = ()
    tensor: int | None = None

    def group(self, cores: int) -> range:
        """Returns the cores of the core's tensor group, in a stage of so many cores."""
        size = self.tensor or cores
        first = self.core - self.rank % size
        return range(first, first + size)

    def stage_cores(self, cores: int) -> range:
        """Returns the cores of its stage, of so many cores."""
        return range(self.core - self.rank, self.core - self.rank + cores)

    @property
    def head_layouts(self) -> tuple[HeadLayout, ...]:
        """The layouts of attention heads on the core, each once; padding is counted."""
        found = (op.head_layout for op in self.ops)
        return tuple(dict.fromkeys(layout for layout in found if layout is not None))

    def require_computed(self) -> None:
        """Raises UserError, by name, for the first Op that the executors do not compute."""
        if (why := first_refusal(self.ops, self.format)) is not None:
            raise UserError(f"timed, not computed yet: {why}", "model")


def cores_of_a_stage(programs: Sequence[Program]) -> int:
    """Returns the cores per stage of one replica's Programs."""
    return max(program.rank for program in programs) + 1


def of_heads(numbers: Sequence[float], axis: Axis, program: Program) -> npt.NDArray[np.float32]:
    """Selects the numbers of a core's heads from one number per head of the model; 0 for a head that is
    padding.

    axis: that of the core's queries.
    """
    each = np.repeat(np.asarray(numbers, np.float32), axis.unit)
    own = program.axes[axis._replace(width=len(each))]
    return np.asarray(cut(each, [own])[:: axis.unit], np.float32)


def of_each(programs: Sequence[Program], make: Callable[[Program], _T]) -> list[_T]:
    """Calls `make` for each Program, once for all ranks whose parts are equally wide: these share their Ops.

    So `make` must read no rank, and only the widths of weights and axes.
    """
    made: dict[int, _T] = {}
    for program in programs:
        if id(program.ops) not in made:
            made[id(program.ops)] = make(program)
    return [made[id(program.ops)] for program in programs]
