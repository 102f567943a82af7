"""Reads a PEFT directory: adapter_config.json and adapter_model.safetensors, checked before they are loaded.

The file's tensors are `base_model.model.<module>.lora_A.weight` [rank, in] and `...lora_B.weight` [out,
rank], under the names that transformers gives the modules of the model.  A family's WeightMap says which rows
of a module are which Linear of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from corepipe.errors import UserError, shown
from corepipe.models.adapters.adapter import Adapter, adapter_of
from corepipe.models.adapters.peft_config import CONFIG, MAX_RANK, PeftConfig, read_config
from corepipe.models.checkpoints.files import check_links
from corepipe.models.checkpoints.safetensors import SafetensorsCheckpoint
from corepipe.models.registry import Architecture
from corepipe.models.weight_map import TensorRows
from corepipe.neuron.axes import Axis
from corepipe.neuron.formats import DType
from corepipe.neuron.graph import Graph
from corepipe.neuron.numerics.arithmetic import F32
from corepipe.neuron.numerics.low_rank import LowRank
from corepipe.neuron.ops import Linear

WEIGHTS, PICKLED = "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."
ENDS = ("lora_A.weight", "lora_B.weight")
BASE_LAYER = ".base_layer.weight"
"""The end of the name under which PEFT saves the head of the model beside its adapter, unless told not to."""
MOST_BYTES = 2 << 30
"""The most bytes of an adapter in fp32, unless the caller says otherwise."""

MOST_HEADER = 4 << 20
"""The most bytes of tensors' names and shapes: thirty thousand tensors, twenty times those of 80 layers."""


class _Place(NamedTuple):
    """A Linear of the graph in a module of transformers: its name, its axes, and its rows of the module's
    output (None: all)."""

    weight: str
    axes: tuple[Axis, ...]
    rows: TensorRows | None


def read_adapter(
    path: Path, base: Architecture, graph: Graph, most_rank: int = MAX_RANK, most_bytes: int = MOST_BYTES
) -> Adapter:
    """Reads the adapter in a directory, for the `graph` of `base`.

    Raises UserError, naming the file and the key or the tensor, for whatever is not computed: see
    `peft_config`, tensors that no layer has, other shapes, and values that are not numbers.
    """
    config = read_config(path, most_rank)
    tensors = _open(path)
    if (needed := _bytes(tensors)) > most_bytes:
        raise UserError(f"{tensors.path}: takes {needed} bytes in fp32, more than {most_bytes}")
    places = _places(base, graph)
    layers: dict[str, LowRank] = {}
    for module in _modules(tensors):
        layers |= _layers(tensors, config, module, places)
    if not layers:
        raise UserError(f"{tensors.path}: holds no adapter")
    return adapter_of(layers)


def bytes_needed(path: Path, compute: DType = DType.BF16) -> int:
    """Returns the bytes that the adapter in a directory takes once it is loaded, its numbers in the format in
    which the model is computed.  Reads the header alone; raises UserError for files that cannot be read."""
    read_config(path)
    return _bytes(_open(path)) * compute.bytes // DType.FP32.bytes


def _open(folder: Path) -> SafetensorsCheckpoint:
    check_links(folder)
    file = folder / WEIGHTS
    if file.is_file():
        _check_header(file)
        return SafetensorsCheckpoint(file)
    if (folder / PICKLED).is_file():
        raise UserError(f"{folder / PICKLED}: pickled weights can run code and are refused; use safetensors")
    raise UserError(f"{shown(folder, 200)}: holds {CONFIG} and no {WEIGHTS}")


def _check_header(file: Path) -> None:
    """Raises UserError for a file of too many tensors, before their names are read."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
    if size > MOST_HEADER:
        raise UserError(
            f"{file}: its header of {size} bytes is longer than that of any adapter: {MOST_HEADER}"
        )


def _bytes(tensors: SafetensorsCheckpoint) -> int:
    return sum(prod(tensors.shape(name)) for name in tensors.names()) * DType.FP32.bytes


def _modules(tensors: SafetensorsCheckpoint) -> list[str]:
    """Returns the modules that have both matrices.  Raises UserError for any other tensor."""
    found: dict[str, set[str]] = {}
    for name in tensors.names():
        if name.endswith(BASE_LAYER):
            raise UserError(
                f"{tensors.path}: tensor {shown(name)} is a copy of the model's own weights; save the "
                "adapter with save_embedding_layers=False"
            )
        end = next((end for end in ENDS if name.endswith(f".{end}")), None)
        if end is None or not name.startswith(PREFIX):
            raise UserError(
                f"{tensors.path}: tensor {shown(name)} is not supported: only {PREFIX}MODULE.{ENDS[0]} and "
                f"{ENDS[1]} are"
            )
        found.setdefault(name.removeprefix(PREFIX).removesuffix(f".{end}"), set()).add(end)
    for module, ends in found.items():
        for end in ENDS:
            if end not in ends:
                raise UserError(f"{tensors.path}: tensor {shown(f'{PREFIX}{module}.{end}')} is missing")
    return sorted(found)


def _places(base: Architecture, graph: Graph) -> dict[str, list[_Place]]:
    """Returns the Linears of the graph by the modules that they may be in."""
    found: dict[str, list[_Place]] = {}
    specs = {op.weight.name: op.weight for op in graph.ops if isinstance(op, Linear)}
    for name, spec in specs.items():
        for module, rows in base.weight_map.modules(name):
            found.setdefault(module, []).append(_Place(name, spec.axes, rows))
    return found


def _layers(
    tensors: SafetensorsCheckpoint, config: PeftConfig, module: str, places: Mapping[str, list[_Place]]
) -> Iterator[tuple[str, LowRank]]:
    """Yields the adapters of the Linears in a module."""
    name = f"{PREFIX}{module}."
    found = places.get(module, [])
    a, b = (tensors.read(name + end) for end in _checked(tensors, config, module, found))
    scale = config.scale_of(module)
    for place in found:
        rows: F32 = b if place.rows is None else np.ascontiguousarray(b[place.rows.rows])
        yield place.weight, LowRank(a, rows, scale)


def _checked(
    tensors: SafetensorsCheckpoint, config: PeftConfig, module: str, places: list[_Place]
) -> tuple[str, ...]:
    """Returns the ends of a module's tensors.  Raises UserError where no Linear computes it, or a shape is
    another."""
    name = f"{PREFIX}{module}."
    if not places:
        raise UserError(
            f"{tensors.path}: tensor {shown(name + ENDS[0])} changes no linear layer that the model has"
        )
    if not config.targets_module(module):
        raise UserError(f"{tensors.path}: {shown(module)} is none of target_modules in {CONFIG}")
    rank, (n, k) = config.rank_of(module), _shape(places)
    if n is None:
        raise UserError(f"{tensors.path}: {shown(module)} is computed in part by something else than Linears")
    for end, shape in zip(ENDS, ((rank, k), (n, rank)), strict=True):
        if (stored := tensors.shape(name + end)) != shape:
            raise UserError(
                f"{tensors.path}: tensor {shown(name + end)} has shape {list(stored)}, the model and "
                f"{CONFIG} ask for {list(shape)}"
            )
    return ENDS


def _shape(places: list[_Place]) -> tuple[int | None, int]:
    """Returns the rows of a module, None where these Linears are not all of them, and its width."""
    width = places[0].axes[1].width
    parts = [place.rows for place in places if place.rows is not None]
    if not parts:
        return places[0].axes[0].width, width
    covered = np.zeros(parts[0].count, bool)
    for part in parts:
        covered[part.rows] = True
    return parts[0].count if covered.all() else None, width
