"""Maps a graph's weights to a checkpoint's tensors: names, parts and order, as a family describes them.

A graph has each matrix by itself, [out, in], with the rows of a head in the order of rotate-half, and gains
that are multiplied as they are. Checkpoints keep several matrices in one tensor, transposed, with pairs of
rows side by side, or a gain less one. A `WeightMap` describes this; `MappedCheckpoint` reads accordingly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError
from corepipe.models.checkpoints.checkpoint import Checkpoint, StoredAs, gathered, missing
from corepipe.models.expert_weights import ExpertTensors, Ways
from corepipe.models.vision.positions import interpolated, is_grid
from corepipe.neuron.axes import HeadLayout
from corepipe.neuron.graph import Graph
from corepipe.neuron.numerics.arithmetic import quantize_weight
from corepipe.neuron.numerics.int4 import ALL, Int8, Stored, W
from corepipe.neuron.values import WeightSpec

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Some rows of a tensor with `count` rows, in this order; `tensor` None: the weight's own tensor.

    In a checkpoint that keeps the module in its own tensor, the weight is all of that tensor. Names are those
    of modules: the same holds for the weight and for the bias.
    """

    tensor: str | None
    rows: npt.NDArray[np.intp]
    count: int


@dataclass(frozen=True, slots=True)
class Stacked:
    """A weight of `shape` that is kept as one tensor or several, whose elements follow one another.

    stored: the shape of each tensor. tensors: their names from where the weight's own name ends. grid: the
    number of positions before those of a square of patches; a square of another size is interpolated (None:
    it is not a grid). pairs: elements of a head that are rotated in adjacent pairs, as in `rotated_pairs`; 0:
    they need no reordering.
    """

    tensors: tuple[str, ...]
    stored: tuple[int, ...]
    shape: tuple[int, ...]
    grid: int | None = None
    pairs: int = field(default=0, repr=False)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Tells whether a tensor of this shape can be read."""
        if self.grid is None or len(shape) != len(self.stored):
            return shape == self.stored
        return (shape[0], shape[2]) == (self.stored[0], self.stored[2]) and is_grid(shape[1], self.grid)

    def made(self, parts: Sequence[F32]) -> F32:
        """Returns the weight."""
        if self.grid is not None and parts[0].shape != self.stored:
            return interpolated(parts[0][0], self.grid, self.shape[0])
        values = np.concatenate([part.reshape(-1) for part in parts])
        if self.pairs:
            values = values.reshape(-1, self.pairs // 2, 2).swapaxes(1, 2)
        return values.reshape(self.shape)


@dataclass(frozen=True, slots=True)
class WeightMap:
    """The differences between a family's checkpoints and its graph. Modules are found by the end of their
    names.

    prefix: the beginning of names in the graph, which a checkpoint may replace by one of `prefixes` (a model
    that was saved without its head has none). spellings: parts of the graph's names, and what may replace
    them. parts: modules that are rows of a tensor. transposed: modules whose matrices are [in, out].
    less_one: norms whose gains are kept less one. stacked: weights with other dimensions, by the end of their
    names. experts: the layouts of mixtures of experts. more_layers: a checkpoint may have layers after the
    last that are not part of the model.
    """

    prefix: str = "model."
    prefixes: tuple[str, ...] = ("",)
    spellings: tuple[tuple[str, str], ...] = ()
    parts: Mapping[str, TensorRows] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()
    less_one: tuple[str, ...] = ()
    stacked: Mapping[str, Stacked] = field(default_factory=dict)
    experts: Ways = field(default_factory=dict)
    more_layers: bool = False

    def spelled(self, name: str) -> Iterator[str]:
        """Yields the names that a tensor of the graph may have in a checkpoint."""
        names = [name]
        for ours, theirs in self.spellings:
            names += [other.replace(ours, theirs) for other in names if ours in other]
        yield from names
        for other in names:
            if other.startswith(self.prefix):
                rest = other.removeprefix(self.prefix)
                yield from (prefix + rest for prefix in self.prefixes)

    def modules(self, name: str) -> Iterator[tuple[str, TensorRows | None]]:
        """Yields the modules that may have a matrix of the graph, and its rows there (None: all)."""
        module = name.removesuffix(".weight")
        end, part = next((item for item in self.parts.items() if _ends(module, item[0])), ("", None))
        own = None if part is None or part.tensor is not None else part
        places = [(module, own)]
        if part is not None and part.tensor is not None:
            places.append((module.removesuffix(end) + part.tensor, part))
        for place, rows in places:
            for spelled in self.spelled(f"{place}.weight"):
                yield spelled.removesuffix(".weight"), rows

    def fingerprint(self) -> str:
        """Returns a digest that changes when weights are read differently; empty if only names differ."""
        if not (self.parts or self.transposed or self.less_one or self.stacked):
            return ""
        digest = hashlib.sha256(repr((self.transposed, self.less_one)).encode())
        digest.update(repr(sorted(self.stacked.items())).encode() if self.stacked else b"")
        paired = sorted(name for name, stacked in self.stacked.items() if stacked.pairs)
        digest.update(repr(paired).encode() if paired else b"")
        for name, part in sorted(self.parts.items()):
            digest.update(f" {name} {part.tensor} {part.count} ".encode())
            digest.update(part.rows.astype("<i8").tobytes())
        return digest.hexdigest()


def in_turn(tensor: str, widths: Mapping[str, int]) -> dict[str, TensorRows]:
    """Returns modules of these widths that follow one another in a tensor."""
    count, start, parts = sum(widths.values()), 0, {}
    for name, width in widths.items():
        parts[name] = TensorRows(tensor, np.arange(start, start + width), count)
        start += width
    return parts


def heads_in_turn(tensor: str, names: Iterable[str], heads: HeadLayout) -> dict[str, TensorRows]:
    """Returns the parts of a tensor with all queries, then all keys, then all values."""
    return in_turn(tensor, dict(zip(names, _widths(heads, 1), strict=True)))


def heads_by_group(tensor: str, names: Iterable[str], heads: HeadLayout) -> dict[str, TensorRows]:
    """Returns the parts of a tensor with each key/value head's queries, key and value together."""
    widths = _widths(heads, heads.kv_heads)
    ends = np.cumsum((0, *widths))
    rows = np.arange(heads.kv_heads * ends[-1]).reshape(heads.kv_heads, -1)
    return {
        name: TensorRows(tensor, rows[:, start:end].reshape(-1), rows.size)
        for name, start, end in zip(names, ends[:-1], ends[1:], strict=True)
    }


def _widths(heads: HeadLayout, groups: int) -> tuple[int, int, int]:
    """Returns the rows of queries, keys and values in each of `groups` equal groups."""
    kv = heads.kv_heads // groups * heads.head_dim
    return heads.heads // groups * heads.head_dim, kv, kv


def rotated_pairs(heads: HeadLayout, rotary_dim: int | None = None) -> dict[str, TensorRows]:
    """Returns queries and keys whose heads are rotated in adjacent pairs (0, 1), (2, 3) ... in their first
    `rotary_dim` elements (None: all); the graph rotates (0, half), (1, half + 1) ..."""
    rotary = rotary_dim or heads.head_dim
    pairs = np.arange(rotary).reshape(-1, 2).T.reshape(-1)
    head = np.concatenate((pairs, np.arange(rotary, heads.head_dim)))
    counts = {"q_proj": heads.heads, "k_proj": heads.kv_heads}
    return {
        name: TensorRows(
            None,
            (np.arange(count)[:, None] * heads.head_dim + head).reshape(-1),
            count * heads.head_dim,
        )
        for name, count in counts.items()
    }


@dataclass(frozen=True, slots=True)
class _WeightSource:
    """The tensor that holds a weight, and the changes to apply to it."""

    tensor: str
    part: TensorRows | None
    transposed: bool
    less_one: bool

    def in_order(self, read: Callable[[slice], W], rows: slice) -> W:
        """Returns some rows of the weight; `read` reads rows of the tensor."""
        return read(rows) if self.part is None else gathered(read, self.part.rows[rows])


class MappedCheckpoint:
    """A checkpoint under the names of a graph's weights, each in the graph's layout."""

    def __init__(self, stored: Checkpoint, weights: WeightMap) -> None:
        self._stored = stored
        self._map = weights

    @property
    def path(self) -> Path:
        return self._stored.path

    @property
    def fingerprint(self) -> str:
        return self._stored.fingerprint + self._map.fingerprint()

    @property
    def stored_as(self) -> StoredAs:
        return self._stored.stored_as

    def names(self) -> Iterable[str]:
        """Returns the names of the tensors as they are stored."""
        return self._names

    def read(self, name: str, rows: slice = ALL) -> F32:
        """Returns fresh fp32 C-contiguous rows of a weight; raises UserError for missing or broken files.

        In the weight of a mixture the rows are experts.
        """
        if (experts := self._experts(name)) is not None:
            return np.asarray(experts.made(self._stored.read, rows), np.float32)
        if (stacked := self._stacked(name)) is not None:
            parts = [self._stored.read(part) for part in self._tensors_of(name, *stacked)]
            return stacked[1].made(parts)[rows]
        source = self._source(name)
        tensor = self._present(source)

        def read(some: slice) -> F32:
            return self._stored.read(tensor).T[some] if source.transposed else self._stored.read(tensor, some)

        values = source.in_order(read, rows)
        return np.ascontiguousarray(values + np.float32(1) if source.less_one else values)

    def stored(self, name: str, rows: slice = ALL) -> Stored:
        """Returns a matrix as four-bit formats keep it; see `Checkpoint.stored`. Raises as `read`."""
        if (experts := self._experts(name)) is not None:
            return experts.made(self._stored.stored, rows)
        source = self._source(name)
        tensor = self._present(source)
        if source.transposed:  # the scales of transposed integers lie along the other axis
            weight = self.read(name, rows)
            plain = isinstance(self._stored.stored(tensor), np.ndarray)
            return weight if plain else Int8(*quantize_weight(weight))
        return source.in_order(lambda some: self._stored.stored(tensor, some), rows)

    def by_rows(self, name: str) -> bool:
        """Tells whether some rows of a weight are read without the others."""
        if (experts := self._experts(name)) is not None:
            return self._stored.by_rows(experts.tensors[0])
        source = self._source(name)
        whole = source.transposed or self._stacked(name) is not None
        return not whole and self._stored.by_rows(self._present(source))

    def check(self, graph: Graph) -> None:
        """Compares every weight of `graph` with the headers, before anything is read.

        Raises UserError for the first tensor that is missing, has another shape, or has no place in the graph
        although it belongs to a module or a model that has one: a bias, or a further layer.
        """
        specs = {graph.tied.get(spec.name, spec.name): spec for spec in graph.weights()}
        for name, spec in specs.items():
            self._check_shape(name, spec)
        for name in specs:
            for other in _contradictions(name, None if self._map.more_layers else graph.num_layers):
                if other not in specs:
                    self._check_absent(self._source(other).tensor)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self._stored.names())

    def _stacked(self, name: str) -> tuple[str, Stacked] | None:
        """Returns the entry of `stacked` for a weight with other dimensions, and its matching end."""
        return next((item for item in self._map.stacked.items() if _ends(name, item[0])), None)

    def _experts(self, name: str) -> ExpertTensors | None:
        """Returns this checkpoint's layout of a mixture's weight, with the names of its tensors here."""
        for end, ways in self._map.experts.items():
            if _ends(name, end):
                return self._present_way(name.removesuffix(end), ways)
        return None

    def _present_way(self, module: str, ways: tuple[ExpertTensors, ...]) -> ExpertTensors:
        named = [way.named(lambda part: self._prefixed(module + part)) for way in ways]
        return next((way for way in named if way.tensors[0] in self._names), named[0])

    def _tensors_of(self, name: str, end: str, stacked: Stacked) -> Iterator[str]:
        """Yields the tensors of a weight. Raises UserError where one is missing or has another shape."""
        for tensor in stacked.tensors:
            found = self._prefixed(name.removesuffix(end) + tensor)
            self._check_present(found, stacked)
            yield found

    def _check_present(self, tensor: str, kept: Stacked | ExpertTensors) -> None:
        if tensor not in self._names:
            raise missing(self.path, tensor)
        if not kept.fits(self._stored.shape(tensor)):
            raise self._misshapen(tensor, kept.stored)

    def _check_experts(self, name: str, spec: WeightSpec, kept: ExpertTensors) -> None:
        if kept.shape != spec.shape:
            raise ValueError(f"{name}: {kept.shape} is mapped, the graph has {spec.shape}")
        for tensor in kept.tensors:
            self._check_present(tensor, kept)
        if kept.beyond is not None:
            self._check_absent(kept.beyond)

    def _check_shape(self, name: str, spec: WeightSpec) -> None:
        if (experts := self._experts(name)) is not None:
            self._check_experts(name, spec, experts)
            return
        if (stacked := self._stacked(name)) is not None:
            if stacked[1].shape != spec.shape:
                raise ValueError(f"{name}: {stacked[1].shape} is mapped, the graph has {spec.shape}")
            list(self._tensors_of(name, *stacked))
            return
        source = self._source(name)
        tensor = self._present(source)
        wanted = spec.shape
        if source.part is not None:
            if len(source.part.rows) != wanted[0]:
                raise ValueError(
                    f"{name}: {len(source.part.rows)} rows are mapped, the graph has {wanted[0]}"
                )
            wanted = (source.part.count, *wanted[1:])
        if source.transposed:
            wanted = wanted[::-1]
        if self._stored.shape(tensor) != wanted:
            raise self._misshapen(tensor, wanted)

    def _check_absent(self, tensor: str) -> None:
        if tensor in self._names:
            raise UserError(
                f"{self._stored.file(tensor)}: tensor {tensor} has no place in the model that the "
                "configuration describes"
            )

    def _misshapen(self, tensor: str, wanted: tuple[int, ...]) -> UserError:
        return UserError(
            f"{self._stored.file(tensor)}: tensor {tensor} has shape {list(self._stored.shape(tensor))}, "
            f"but the model's configuration asks for {list(wanted)}"
        )

    def _source(self, name: str) -> _WeightSource:
        """Returns where a weight of the graph is, or would be."""
        module, _, kind = name.rpartition(".")
        end, part = next((item for item in self._map.parts.items() if _ends(module, item[0])), ("", None))
        if part is not None and part.tensor is not None and self._prefixed(name) in self._names:
            part = None  # this checkpoint keeps it as a tensor of its own
        elif part is not None and part.tensor is not None:
            module = module.removesuffix(end) + part.tensor
        matrix = kind == "weight"
        return _WeightSource(
            self._prefixed(f"{module}.{kind}"),
            part,
            transposed=matrix and module.endswith(self._map.transposed),
            less_one=matrix and module.endswith(self._map.less_one),
        )

    def _prefixed(self, name: str) -> str:
        """Returns the name with the prefix and the spelling of this checkpoint."""
        return next((other for other in self._map.spelled(name) if other in self._names), name)

    def _present(self, source: _WeightSource) -> str:
        """Returns the tensor's name; raises UserError where there is none."""
        if source.tensor not in self._names:
            raise missing(self.path, source.tensor)
        return source.tensor


def _ends(module: str, end: str) -> bool:
    return module == end or module.endswith(f".{end}")


def _contradictions(name: str, layers: int | None) -> Iterator[str]:
    """Yields tensors that a checkpoint of a graph with this weight cannot have, unless the graph has them."""
    if name.endswith(".weight"):
        yield name.removesuffix("weight") + "bias"
    if layers is not None and (last := f".{layers - 1}.") in name:
        yield name.replace(last, f".{layers}.", 1)
