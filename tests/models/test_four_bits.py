"""Checkpoints whose weights have four bits already: the kept values are theirs, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from corepipe import LLM, SamplingParams
from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.checkpoints.gguf_blocks import BLOCK_TYPES
from corepipe.models.checkpoints.gguf_int4 import FOUR_BITS, read_blocks
from corepipe.models.registry import Model
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.weights import packed_weights
from corepipe.neuron.numerics.arithmetic import quantize_weight
from corepipe.neuron.numerics.int4 import Int4, Int8
from corepipe.neuron.values import WeightRole
from tests.models import ggufs
from tests.models.rewritten import change_config, with_projections
from tests.models.test_quantized import made
from tests.parity.families import TINY

Type = gguf.GGMLQuantizationType
LIBRARY = {"Q4_0": Type.Q4_0, "Q4_1": Type.Q4_1, "Q4_K": Type.Q4_K}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
FOUR = FORMATS["int4-weights"]


def random_blocks(name: str, rows: int, columns: int) -> np.ndarray:
    """Returns random values, with realistic scales."""
    kind = next(kind for kind in BLOCK_TYPES.values() if kind.name == name)
    rng = np.random.default_rng(columns)
    blocks = rng.integers(0, 256, (rows, columns // kind.elements, kind.bytes), dtype=np.uint8)
    scales = 1 if name == "Q4_0" else 2
    numbers = rng.uniform(-0.01, 0.01, (*blocks.shape[:2], scales)).astype("<f2")
    blocks[:, :, : 2 * scales] = numbers.view(np.uint8).reshape(*blocks.shape[:2], -1)
    return blocks


@pytest.mark.parametrize("name", FOUR_BITS)
def test_blocks_stand_for_what_the_gguf_library_says(name: str) -> None:
    blocks = random_blocks(name, 7, 512)
    found = read_blocks(name, blocks.reshape(-1), 7, blocks.shape[2])
    want = dequantize(blocks.reshape(7, -1), LIBRARY[name])
    if name == "Q4_K":  # scales of 17 bits in fp16: half a unit of 11 bits of each
        off = np.repeat(15 * np.abs(found.scale) + np.abs(found.offset), 32, axis=1).astype(np.float32)
        assert (np.abs(found.dense() - want) <= off * 2.0**-11 + 2.0**-24).all()
    else:
        np.testing.assert_array_equal(found.dense(), want)


def converted(folder: Path, encoding: Type) -> Model:
    ggufs.convert(TINY / "llama2", folder / "m.gguf", encoding)
    return registry.load(folder / "m.gguf")


def matrices(model: Model) -> list[str]:
    graph = model.graph(FOUR)
    names = (graph.tied.get(s.name, s.name) for s in graph.weights() if s.role is WeightRole.MATRIX)
    return sorted(names)


@pytest.mark.parametrize("encoding", [Type.Q4_0, Type.Q4_1])
def test_a_gguf_file_is_packed_as_it_is(tmp_path: Path, encoding: Type) -> None:
    """Rows of queries and keys, which the file has in another order, are reordered with their scales."""
    model = converted(tmp_path, encoding)
    checkpoint, graph = model.checkpoint, model.graph(FOUR)
    kept = {}
    for name in matrices(model):
        stored = checkpoint.stored(name)
        kept[name] = type(stored)
        if isinstance(stored, Int4):
            np.testing.assert_array_equal(stored.dense(), checkpoint.read(name))
    assert sum(kind is Int4 for kind in kept.values()) >= graph.num_layers
    assert checkpoint.stored_as.four_bits == encoding.name
    packed = packed_weights(graph, checkpoint, tmp_path)
    kind = {Type.Q4_0: "int4g32", Type.Q4_1: "int4g32m"}[encoding]
    assert {packed[name].kind for name, form in kept.items() if form is Int4} == {kind}
    again = packed_weights(graph, checkpoint, tmp_path)
    assert again.path == packed.path


def test_other_blocks_become_int8(tmp_path: Path) -> None:
    model = converted(tmp_path, Type.Q8_0)
    assert model.checkpoint.stored_as.four_bits is None
    for name in matrices(model):
        stored, values = model.checkpoint.stored(name), model.checkpoint.read(name)
        if isinstance(stored, Int8):
            want = quantize_weight(values)
            np.testing.assert_array_equal(stored.values, want[0])
            np.testing.assert_array_equal(stored.scale, want[1])
        else:  # rows that fit no block stay floats
            np.testing.assert_array_equal(stored, values)


def test_a_file_of_four_bits_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is the same in a batch and alone."""
    monkeypatch.setenv("COREPIPE_CACHE", str(tmp_path))
    converted(tmp_path, Type.Q4_1)
    with LLM(str(tmp_path / "m.gguf"), format="int4-weights", max_model_len=64) as llm:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        both = llm.generate(["one", "two three"], params)
        assert llm.generate("two three", params)[0].token_ids == both[1].token_ids


def test_a_damaged_scale_is_told(tmp_path: Path) -> None:
    model = converted(tmp_path, Type.Q4_0)
    file = model._gguf
    assert file is not None
    name = "blk.0.ffn_down.weight"
    data = bytearray((tmp_path / "m.gguf").read_bytes())
    data[file.tensors[name].offset : file.tensors[name].offset + 2] = np.float16(np.inf).tobytes()
    (tmp_path / "m.gguf").write_bytes(data)
    checkpoint = registry.load(tmp_path / "m.gguf").checkpoint
    with pytest.raises(UserError, match=r"m\.gguf: tensor blk\.0\.ffn_down\.weight: .*damaged"):
        checkpoint.stored("model.layers.0.mlp.down_proj.weight")


def words_along_inputs(numbers: np.ndarray) -> np.ndarray:
    """Packs words as AutoGPTQ's `pack` does: a word for eight rows."""
    words = np.zeros((numbers.shape[0] // 8, numbers.shape[1]), np.uint32)
    for row in range(len(words)):
        for j in range(8):
            words[row] |= numbers[8 * row + j].astype(np.uint32) << (4 * j)
    return words.view(np.int32)


def words_along_outputs(numbers: np.ndarray, order: tuple[int, ...] = tuple(range(8))) -> np.ndarray:
    """Packs words as AutoGPTQ packs zero points, and AutoAWQ all tensors: a word for eight columns."""
    words = np.zeros((numbers.shape[0], numbers.shape[1] // 8), np.uint32)
    for column in range(words.shape[1]):
        for i, j in enumerate(order):
            words[:, column] |= numbers[:, 8 * column + j].astype(np.uint32) << (4 * i)
    return words.view(np.int32)


def packed_module(
    method: str, weight: np.ndarray, group: int, zeros: str
) -> tuple[dict[str, Any], np.ndarray]:
    """Returns the tensors of a matrix [outputs, inputs] in such a checkpoint, and its values."""
    outputs, inputs = weight.shape
    rng = np.random.default_rng(inputs)
    groups = -(-inputs // group)
    numbers = rng.integers(0, 16, (inputs, outputs), dtype=np.uint8)
    points = np.full((groups, outputs), 8) if zeros == "middle" else rng.integers(1, 16, (groups, outputs))
    scales = rng.uniform(0.001, 0.02, (groups, outputs)).astype(np.float16)
    which = np.arange(inputs) // group
    dense = (numbers - points[which].astype(np.float32)) * scales[which].astype(np.float32)
    if method == "awq":
        words, zero_words = (words_along_outputs(x, AWQ_ORDER) for x in (numbers, points))
    else:
        words, zero_words = words_along_inputs(numbers), words_along_outputs(points - (zeros != "second"))
    parts = {"qweight": words, "qzeros": zero_words, "scales": scales}
    return parts | ({} if method == "awq" else {"g_idx": which.astype(np.int32)}), dense.T


def packed_model(
    folder: Path, method: str, group: int = 32, zeros: str = "any", **config: object
) -> tuple[Path, dict[str, np.ndarray]]:
    """Writes the tiny llama2 with random projections; returns it, and the values they represent."""
    dense: dict[str, np.ndarray] = {}

    def stored(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
        parts, dense[name] = packed_module(method, values, group, zeros)
        if method == "gptq":
            parts["bias"] = np.zeros(len(values), np.float16)
        return {name.replace("weight", part): array for part, array in parts.items()}

    described = {"quant_method": method, "bits": 4, "group_size": group, **config}
    return with_projections(folder, described, stored), dense


@pytest.mark.parametrize(
    ("method", "group", "zeros", "config"),
    [
        ("gptq", 32, "any", {"sym": False}),
        ("gptq", 128, "middle", {"sym": True, "checkpoint_format": "gptq"}),
        ("gptq", 64, "second", {"sym": False, "checkpoint_format": "gptq_v2"}),
        ("awq", 32, "any", {"zero_point": True, "version": "gemm"}),
        ("awq", 16, "any", {"version": "GEMM"}),
    ],
)
def test_words_stand_for_what_they_were_packed_from(
    tmp_path: Path, method: str, group: int, zeros: str, config: dict
) -> None:
    folder, dense = packed_model(tmp_path / "m", method, group, zeros, **config)
    model = registry.load(folder)
    model.check(model.graph(FOUR))
    for name, want in dense.items():
        np.testing.assert_array_equal(model.checkpoint.read(name), want)
        stored = model.checkpoint.stored(name)
        assert isinstance(stored, Int8 if group == 16 else Int4)
        if isinstance(stored, Int4):
            np.testing.assert_array_equal(stored.dense(), want)
            assert stored.offsets == ("none" if zeros == "middle" else "zeros")
    assert model.checkpoint.stored_as.kinds == f"int4 in groups of {group}" + (
        "" if config.get("sym") else " with zero points"
    )
    assert (model.checkpoint.stored_as.four_bits is None) == (group == 16)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_group_may_be_longer_than_the_inputs(tmp_path: Path, method: str) -> None:
    folder, dense = packed_model(tmp_path / "m", method, 1 << 20)
    checkpoint = registry.load(folder).checkpoint
    for name, want in dense.items():
        np.testing.assert_array_equal(checkpoint.read(name), want)
        stored = checkpoint.stored(name)
        assert isinstance(stored, Int4)
        np.testing.assert_array_equal(stored.dense(), want)


@pytest.mark.parametrize(
    ("method", "config", "why"),
    [
        ("gptq", {"desc_act": True}, "desc_act is not supported: groups in the order of activations"),
        ("gptq", {"bits": 8}, "bits 8 of gptq are not supported"),
        ("gptq", {"dynamic": {"-:lm_head": {}}}, "dynamic is not supported"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not supported"),
        ("awq", {"version": "gemv"}, "version 'gemv' is not supported"),
        ("awq", {"group_size": 0}, "group_size must be an integer from 1"),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path: Path, method: str, config: dict, why: str) -> None:
    folder, _ = packed_model(tmp_path / "m", method, **config)
    with pytest.raises(UserError, match=rf"config\.json: quantization_config\.{why}"):
        registry.load(folder)


def test_groups_in_another_order_are_refused(tmp_path: Path) -> None:
    folder, dense = packed_model(tmp_path / "m", "gptq")
    file = folder / "model.safetensors"
    tensors = dict(registry.SafetensorsCheckpoint(folder)._entries)
    name = next(iter(dense))
    entry = tensors[name.replace(".weight", ".g_idx")]
    data = bytearray(file.read_bytes())
    data[entry.offset : entry.offset + 4] = np.int32(1).tobytes()
    file.write_bytes(data)
    with pytest.raises(UserError, match="has groups in the order of activations"):
        registry.load(folder).checkpoint.stored(name)


def test_shapes_that_contradict_the_config_are_refused(tmp_path: Path) -> None:
    folder, _ = packed_model(tmp_path / "m", "awq", 32)
    change_config(folder, quantization_config={"quant_method": "awq", "bits": 4, "group_size": 64})
    with pytest.raises(UserError, match=r"scales is \[\d+, \d+\], not \[\d+, \d+\], which contradicts"):
        _ = registry.load(folder).checkpoint


@pytest.mark.parametrize("group", [32, None])
@pytest.mark.parametrize("zero_points", [False, True])
def test_compressed_tensors_are_kept(tmp_path: Path, group: int | None, zero_points: bool) -> None:
    """Groups of 16, which no kernel supports, become int8; group None: a scale a row."""
    kept = set()

    def stored(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
        rows, columns = values.shape
        if columns % 32:
            return {name: values}
        kept.add(name)
        rng = np.random.default_rng(columns)
        numbers = rng.integers(0, 16, (rows, columns), dtype=np.uint8)
        scale = rng.uniform(0.001, 0.02, (rows, columns // (group or columns))).astype(np.float16)
        parts = {"packed": words_along_outputs(numbers), "scale": scale, "shape": np.array([rows, columns])}
        if zero_points:
            parts["zero_point"] = words_along_inputs(rng.integers(0, 16, scale.shape, dtype=np.uint8))
        return {f"{name}_{part}": array for part, array in parts.items()}

    quantization = made("pack-group-zero" if zero_points else "pack-group")[1]
    for described in quantization["config_groups"].values():
        described["weights"] |= {"group_size": group, "strategy": "group" if group else "channel"}
    checkpoint = registry.load(with_projections(tmp_path / "m", quantization, stored)).checkpoint
    scales = f"in groups of {group}" if group else "with a scale a channel"
    assert checkpoint.stored_as.four_bits == f"int4 {scales}{' with zero points' if zero_points else ''}"
    for name in kept:
        four = checkpoint.stored(name)
        assert isinstance(four, Int4)
        assert four.offsets == ("zeros" if zero_points else "none")
        np.testing.assert_array_equal(four.dense(), checkpoint.read(name))
    assert kept
