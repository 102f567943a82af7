"""Experts' matrices are the same in every layout of a checkpoint; contradicting configs are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.expert_weights import MATRICES, ways
from corepipe.models.weight_map import MappedCheckpoint, WeightMap
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.weights import InMemoryWeights, pack, packed_weights, reader
from corepipe.neuron.numerics import int4
from corepipe.neuron.numerics.arithmetic import quantize_weight
from corepipe.neuron.numerics.int4 import ALL, Int4, Int8, Stored
from tests.parity import expected

EXPERTS, FFN, HIDDEN = 3, 40, 64
SHAPES = dict(zip(MATRICES, ((FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN)), strict=True))


class Tensors:
    """A checkpoint in memory, with some matrices on a grid."""

    path = Path("checkpoint")

    def __init__(self, tensors: dict[str, np.ndarray], grid: Callable[[str, np.ndarray], Stored]) -> None:
        self._tensors, self._grid = tensors, grid

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def read(self, name: str, rows: slice = ALL) -> np.ndarray:
        return self._tensors[name][rows].copy()

    def stored(self, name: str, rows: slice = ALL) -> Stored:
        return self._grid(name, self._tensors[name][rows])


def floats(_name: str, values: np.ndarray) -> Stored:
    return values


def eights(_name: str, values: np.ndarray) -> Stored:
    return Int8(*quantize_weight(values.reshape(-1, values.shape[-1])))


def fours(_name: str, values: np.ndarray) -> Stored:
    return int4.quantize(values.reshape(-1, values.shape[-1]))


def numbers() -> dict[str, np.ndarray]:
    """Returns each matrix of all experts."""
    rng = np.random.default_rng(3)
    return {name: rng.standard_normal((EXPERTS, *shape)).astype(np.float32) for name, shape in SHAPES.items()}


def kept(way: str) -> dict[str, np.ndarray]:
    """Returns the same weights in one of a checkpoint's layouts."""
    whole = numbers()
    if way == "fused":
        both = np.concatenate([whole["gate_proj"], whole["up_proj"]], axis=1)
        return {"m.experts.gate_up_proj": both, "m.experts.down_proj": whole["down_proj"]}
    if way == "turned":
        both = np.concatenate([whole["gate_proj"], whole["up_proj"]], axis=1)
        back = whole["down_proj"].swapaxes(1, 2)
        return {"m.experts.gate_up_proj": both.swapaxes(1, 2), "m.experts.down_proj": back}
    if way == "stacks":
        return {f"m.experts.{name}.weight": values for name, values in whole.items()}
    return {
        f"m.experts.{e}.{name}.weight": values[e] for name, values in whole.items() for e in range(EXPERTS)
    }


def checkpoint(way: str, grid: Callable[[str, np.ndarray], Stored]) -> MappedCheckpoint:
    stored: Any = Tensors(kept(way), grid)
    return MappedCheckpoint(stored, WeightMap(experts=ways(EXPERTS, FFN, HIDDEN)))


@pytest.mark.parametrize("way", ["each", "stacks", "fused"])
@pytest.mark.parametrize("name", MATRICES)
def test_however_they_are_kept_they_are_the_same(way: str, name: str) -> None:
    weight, whole = f"m.experts.{name}.weight", numbers()[name]
    np.testing.assert_array_equal(checkpoint(way, floats).read(weight), whole)
    np.testing.assert_array_equal(checkpoint(way, floats).stored(weight), whole)
    rows = whole.reshape(-1, whole.shape[-1])
    eight = checkpoint(way, eights).stored(weight)
    assert isinstance(eight, Int8)
    for got, wanted in zip(eight, quantize_weight(rows), strict=True):
        np.testing.assert_array_equal(got, wanted)
    four = checkpoint(way, fours).stored(weight)
    assert isinstance(four, Int4)
    np.testing.assert_array_equal(four.dense(), int4.quantize(rows).dense())
    parts = list(int4.matrices_of(four, EXPERTS))
    np.testing.assert_array_equal(np.concatenate([part.values for part in parts]), four.values)
    for expert, part in enumerate(parts):
        one = slice(expert, expert + 1)
        np.testing.assert_array_equal(checkpoint(way, floats).read(weight, one), whole[one])
        np.testing.assert_array_equal(checkpoint(way, fours).stored(weight, one).dense(), part.dense())


def test_experts_on_different_grids_have_eight_bits_all() -> None:
    def mixed(name: str, values: np.ndarray) -> Stored:
        return (floats if ".0." in name else eights if ".1." in name else fours)(name, values)

    weight, whole = "m.experts.gate_proj.weight", numbers()["gate_proj"]
    found = checkpoint("each", mixed).stored(weight)
    assert isinstance(found, Int8)
    wanted = np.stack([whole[0], whole[1], int4.quantize(whole[2]).dense()]).reshape(-1, HIDDEN)
    np.testing.assert_array_equal(found.values, quantize_weight(wanted)[0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return expected.load("mixtral").write(tmp_path / "model")


def changed(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> str:
    """Returns the error of the model with other tensors."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    model = registry.load(folder)
    with pytest.raises(UserError) as error:
        model.check(model.graph(FORMATS["fp32"]))
    return str(error.value)


PREFIX = "model.layers.1.block_sparse_moe.experts"


def test_a_missing_a_further_and_a_misshapen_expert_are_named(folder: Path) -> None:
    matrix = f"{PREFIX}.4.w3.weight"
    assert f"tensor {matrix} is missing" in changed(folder, lambda tensors: tensors.__delitem__(matrix))
    wide = np.zeros((104, 95), np.float32)
    said = changed(folder, lambda tensors: tensors.update({matrix: wide}))
    assert re.search(r"w3.weight has shape \[104, 95\], .* asks for \[104, 96\]", said)
    right = np.zeros((104, 96), np.float32)
    said = changed(folder, lambda tensors: tensors.update({matrix: right, f"{PREFIX}.7.w1.weight": right}))
    assert f"{PREFIX}.7.w1.weight has no place in the model" in said


def test_transformers_own_names_are_read_too(folder: Path) -> None:
    """Names of `state_dict` since version 5 are read; `save_pretrained` writes the hub's."""
    model = registry.load(folder)
    wanted = {spec.name: model.checkpoint.read(spec.name) for spec in model.graph(FORMATS["fp32"]).weights()}
    tensors = load_file(folder / "model.safetensors")
    for layer in (0, 1):
        block = f"model.layers.{layer}.block_sparse_moe"
        gate, up, down = (
            np.stack([tensors.pop(f"{block}.experts.{e}.{name}.weight") for e in range(7)])
            for name in ("w1", "w3", "w2")
        )
        mlp = f"model.layers.{layer}.mlp"
        tensors[f"{mlp}.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        tensors[f"{mlp}.experts.down_proj"] = down
        tensors[f"{mlp}.gate.weight"] = tensors.pop(f"{block}.gate.weight")
    save_file(tensors, folder / "model.safetensors")
    model = registry.load(folder)
    model.check(model.graph(FORMATS["fp32"]))
    for name, values in wanted.items():
        np.testing.assert_array_equal(model.checkpoint.read(name), values)


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_packed_file_has_each_expert_as_a_matrix_by_itself(fmt: str, folder: Path, tmp_path: Path) -> None:
    """The 104 rows do not fill whole panels."""
    model = registry.load(folder)
    graph = model.graph(FORMATS[fmt])
    packed = packed_weights(graph, model.checkpoint, tmp_path / "cache")
    in_memory = InMemoryWeights(graph, reader(graph, model.checkpoint))
    stacks = [spec for spec in graph.weights() if spec.is_stack]
    assert len(stacks) == 6
    for spec in stacks:
        one = replace(spec, axes=spec.axes[1:])
        whole = model.checkpoint.read(spec.name)
        for expert, matrix in enumerate(packed[spec.name].matrices()):
            wanted = pack(one, graph.format, whole[expert])
            assert (matrix.kind, matrix.shape) == (wanted.kind, wanted.shape)
            np.testing.assert_array_equal(matrix.data, wanted.data)
            assert (matrix.scale is None) == (wanted.scale is None)
            if wanted.scale is not None:
                np.testing.assert_array_equal(matrix.scale, wanted.scale)
        np.testing.assert_array_equal(in_memory[spec.name].data, packed[spec.name].data)
