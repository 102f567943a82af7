"""GGUF files of mixtures of experts and of Mamba-2 are the models that they were made of, to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.checkpoints.gguf_checkpoint import PLAIN
from corepipe.models.checkpoints.gguf_remade import REMADE
from corepipe.models.registry import Model
from corepipe.neuron.graph import FORMATS, WeightRole
from corepipe.neuron.int4 import Int4, Int8
from corepipe.neuron.weights import InMemoryWeights, packed_weights, reader
from tests.models import gguf_mixtures
from tests.models.test_mxfp4 import packed_model
from tests.parity import expected as parity

CASES: dict[str, dict[str, Any]] = {
    "mixtral": {"sliding_window": None},
    "olmoe": {},
    "phimoe": {"router_jitter_noise": 0.01},
    "dbrx": {},
    "granitemoe": {},
    "gpt_oss": {},
    "gpt_oss-clamped": {},
    "deepseek_v2": {},
    "deepseek_v2-groups": {},
    "deepseek_v3": {},
    "mamba2": {},
    "mamba2-groups": {"time_step_limit": None},
}
"""Of each small model what its file does not say, as whoever reads it takes it to be."""
SAME_SCALES = ("deepseek_v2-groups", "deepseek_v3")
"""Whose `mscale` is written nowhere."""


def original(name: str, folder: Path) -> Path:
    path = parity.load(name).write(folder)
    config = {**json.loads((path / "config.json").read_text()), **CASES[name]}
    rope = config.get("rope_parameters") or {}
    if name in SAME_SCALES:
        rope["mscale"] = rope["mscale_all_dim"]
    if name == "phimoe":
        config["rope_parameters"] = {key: rope[key] for key in rope if not key.endswith("_mscale")}
    kept = {key: value for key, value in config.items() if value is not None or key != "time_step_limit"}
    (path / "config.json").write_text(json.dumps(kept))
    return path


def both(name: str, folder: Path, encoding: Type = Type.F32, **options: bool) -> tuple[Model, Model]:
    """The model of a directory, and of the file that is made of it."""
    path = original(name, folder / "original")
    file = gguf_mixtures.write(path, folder / "model.gguf", encoding, **options)
    return registry.load(path), registry.load(file)


def assert_same_weights(model: Model, file: Model, fmt: str = "fp32") -> None:
    graph = model.graph(FORMATS[fmt])
    assert file.graph(FORMATS[fmt]).ops == graph.ops
    file.check(graph)
    for spec in graph.weights():
        name = graph.tied.get(spec.name, spec.name)
        np.testing.assert_array_equal(file.checkpoint.read(name), model.checkpoint.read(name), name)


@pytest.mark.parametrize("name", [name for name in CASES if "mamba2" not in name])
def test_a_file_computes_what_its_original_does(name: str, tmp_path: Path) -> None:
    """The same Ops over the same weights: the same bits."""
    assert_same_weights(*both(name, tmp_path))


@pytest.mark.parametrize("name", ["mamba2", "mamba2-groups"])
def test_a_file_of_mamba_has_its_rates(name: str, tmp_path: Path) -> None:
    """It keeps rates, of which several logarithms may be the source: all of them give the same."""
    model, file = both(name, tmp_path)
    graph = model.graph(FORMATS["fp32"])
    assert file.graph(FORMATS["fp32"]).ops == graph.ops
    file.check(graph)
    for spec in graph.weights():
        at = graph.tied.get(spec.name, spec.name)
        mine, theirs = (one.checkpoint.read(at) for one in (file, model))
        if at.endswith("A_log"):
            mine, theirs = (np.exp(one.astype(np.float64)).astype(np.float32) for one in (mine, theirs))
        np.testing.assert_array_equal(mine, theirs, at)


def test_any_rate_has_a_logarithm_that_gives_it_again() -> None:
    logarithms = np.random.default_rng(3).uniform(-4, 4, 100_000).astype(np.float32)
    rates = -np.exp(logarithms.astype(np.float64)).astype(np.float32)
    again = REMADE["ssm_a"].made(rates[:, None])
    np.testing.assert_array_equal(-np.exp(again.astype(np.float64)).astype(np.float32), rates)


@pytest.mark.parametrize("encoding", [Type.F16, Type.BF16])
def test_halves_are_the_original_s_rounded_once(encoding: Type, tmp_path: Path) -> None:
    for name in ("deepseek_v2", "gpt_oss"):
        model, file = both(name, tmp_path / name, encoding)
        for spec in model.graph(FORMATS["fp32"]).weights():
            values, read = model.checkpoint.read(spec.name), file.checkpoint.read(spec.name)
            blocks = gguf.quantize(values, encoding)
            rounded = gguf.dequantize(blocks, encoding).reshape(values.shape)
            assert np.array_equal(read, values) or np.array_equal(read, rounded), spec.name


def test_latents_of_older_files_are_those_of_newer_ones(tmp_path: Path) -> None:
    """One tensor makes keys and values, and heads have the lengths that they have in attention."""
    for name in ("deepseek_v2", "deepseek_v3"):
        assert_same_weights(*both(name, tmp_path / name, latents=False))


ENCODINGS = {
    Type.Q4_0: Int4,
    Type.Q4_1: Int4,
    Type.Q8_0: Int8,
    Type.Q5_0: Int8,
    Type.Q5_1: Int8,
    Type.MXFP4: np.ndarray,
}
"""Which the library can write, and as what formats of four bits keep them."""


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: encoding.name)
@pytest.mark.parametrize("name", ["mixtral", "granitemoe", "dbrx", "deepseek_v3", "mamba2-groups"])
def test_blocks_stand_for_what_the_library_says(name: str, encoding: Type, tmp_path: Path) -> None:
    """Experts among them, whose stacks are kept as Linears are; what is made of several tensors is not."""
    _, file = both(name, tmp_path, encoding)
    reader_ = gguf.GGUFReader(tmp_path / "model.gguf")
    written = {tensor.name: gguf.dequantize(np.array(tensor.data), tensor.tensor_type) for tensor in reader_.tensors}
    assert encoding.name in (file.checkpoint.stored_as or "")
    kept = set()
    stored = file._stored()
    for hf in stored.names():
        source = stored._source(hf)
        types = {file._gguf.tensors[tensor].type.name for tensor in source.tensors}
        if source.remade is None and not source.tensors[0].split(".")[-2] in ("attn_q", "attn_k"):
            np.testing.assert_array_equal(stored.read(hf), written[source.tensors[0]].reshape(stored.shape(hf)))
        if not types <= PLAIN and source.remade is None:
            kept.add(type(stored.stored(hf)))
    assert kept == {ENCODINGS[encoding]}


@pytest.mark.parametrize("encoding", [Type.Q4_0, Type.Q4_1], ids=lambda encoding: encoding.name)
@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "dbrx", "deepseek_v3"])
def test_experts_of_four_bits_are_packed_as_they_are(name: str, encoding: Type, tmp_path: Path) -> None:
    _, file = both(name, tmp_path, encoding)
    graph = file.graph(FORMATS["int4-weights"], 64)
    packed = packed_weights(graph, file.checkpoint, tmp_path / "cache")
    kind = {Type.Q4_0: "int4g32", Type.Q4_1: "int4g32m"}[encoding]
    stacks = [spec for spec in graph.weights() if spec.role is WeightRole.MATRIX and spec.is_stack]
    four = [spec for spec in stacks if spec.shape[-1] % 32 == 0]
    assert four
    for spec in four:
        kept = file.checkpoint.stored(spec.name)
        assert isinstance(kept, Int4)
        np.testing.assert_array_equal(kept.dense().reshape(spec.shape), file.checkpoint.read(spec.name))
        assert packed[spec.name].kind == kind


def test_mxfp4_of_a_file_is_that_of_a_directory(tmp_path: Path) -> None:
    """In every format, down to what is packed."""
    _, path = packed_model(tmp_path)
    model = registry.load(path)
    file = registry.load(gguf_mixtures.write(path, tmp_path / "model.gguf"))
    assert file.checkpoint.stored_as == "MXFP4"
    for fmt in ("fp32", "bf16", "int8", "int4-weights"):
        graph = model.graph(FORMATS[fmt], 64)
        file.check(graph)
        one, other = (InMemoryWeights(graph, reader(graph, each.checkpoint)) for each in (model, file))
        for spec in graph.weights():
            np.testing.assert_array_equal(one[spec.name].data, other[spec.name].data, err_msg=spec.name)
