"""GGUF files of every known architecture equal the models that they were made of, to the bit."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from corepipe import LLM, SamplingParams
from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.checkpoints.gguf_families import GGUF_FAMILIES
from corepipe.models.checkpoints.gguf_restored import RESTORED
from corepipe.models.registry import Model
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.weights import InMemoryWeights, packed_weights, reader
from corepipe.neuron.numerics.int4 import Int4, Int8
from corepipe.neuron.values import WeightRole
from tests.models import ggufs
from tests.models.gguf_conversion import ARCHITECTURES
from tests.models.test_mxfp4 import packed_model
from tests.parity import expected as parity
from tests.parity.families import TINY

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
LINEAR = {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0}
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {"use_sliding_window": False, "rope_parameters": YARN},
    "qwen3": {"rope_parameters": LINEAR},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 24, "attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0},
    "gemma3_text": {},
    "granite": {},
    "olmo2": {},
    "olmo3": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {"sliding_window": None},
    "phi3": {},
    "phi3-long": {"original_max_position_embeddings": 8, "max_position_embeddings": 8**4},
    "gpt2": {},
    "mixtral": {"sliding_window": None},
    "olmoe": {},
    "qwen2_moe": {"norm_topk_prob": False, "use_sliding_window": False, "layer_types": None},
    "qwen3_moe": {"norm_topk_prob": True, "use_sliding_window": False},
    "phimoe": {"router_jitter_noise": 0.01},
    "dbrx": {},
    "granitemoe": {},
    "granitemoehybrid": {},
    "granitemoehybrid-dense": {"position_embedding_type": None, "time_step_limit": None},
    "gpt_oss": {},
    "gpt_oss-clamped": {},
    "deepseek_v2": {},
    "deepseek_v2-groups": {},
    "deepseek_v3": {},
    "mamba2": {},
    "mamba2-groups": {"time_step_limit": None},
}
"""The settings that each small model's file lacks, with the values that readers assume."""
RATES = ("mamba2", "mamba2-groups", "granitemoehybrid", "granitemoehybrid-dense")
"""Models whose files keep rates in place of their logarithms."""
SAME_SCALES = ("deepseek_v2-groups", "deepseek_v3")
"""Models whose `mscale` is not written."""


def original(name: str, folder: Path, vocabulary: int | None = None) -> Path:
    small = parity.load(name)
    if vocabulary is not None:
        own = small.config["vocab_size"]
        shapes = {key: (vocabulary, *s[1:]) if s[0] == own else s for key, s in small.shapes.items()}
        small = replace(small, config={**small.config, "vocab_size": vocabulary}, shapes=shapes)
    if name in ("qwen2_moe", "qwen3_moe"):
        small = sparse(small)
    path = small.write(folder)
    config = {**json.loads((path / "config.json").read_text()), **CASES[name]}
    rope = config.get("rope_parameters") or {}
    if name in SAME_SCALES:
        rope["mscale"] = rope["mscale_all_dim"]
    if name == "phi3-long":  # the factor of attention is then 2
        rope["original_max_position_embeddings"] = 8
    if name == "phimoe":
        config["rope_parameters"] = {key: rope[key] for key in rope if not key.endswith("_mscale")}
    kept = {key: value for key, value in config.items() if value is not None or key != "time_step_limit"}
    (path / "config.json").write_text(json.dumps(kept))
    return path


def sparse(small: parity.Expected) -> parity.Expected:
    """Returns the model with experts in every layer: llama.cpp has no Qwen files with dense layers."""
    layers = range(small.config["num_hidden_layers"])
    with_experts = next(i for i in layers if any(f"layers.{i}.mlp.experts." in name for name in small.shapes))
    prefix = f"layers.{with_experts}.mlp."
    shapes = {name: shape for name, shape in small.shapes.items() if ".mlp." not in name}
    for name, shape in small.shapes.items():
        if prefix in name:
            shapes |= {name.replace(prefix, f"layers.{i}.mlp."): shape for i in layers}
    config = {**small.config, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return replace(small, config=config, shapes=shapes)


def both(name: str, folder: Path, encoding: Type = Type.F32, **options: Any) -> tuple[Model, Model]:
    """Returns the model of a directory, and of the file that is made of it."""
    path = original(name, folder / "original")
    file = ggufs.write(path, folder / "model.gguf", encoding, **options)
    return registry.load(path), registry.load(file)


def assert_same_weights(model: Model, file: Model, near: float = 0) -> None:
    graph = model.graph(FORMATS["fp32"])
    assert file.graph(FORMATS["fp32"]).ops == graph.ops
    assert (file.config.bos_id, file.config.eos_ids) == (model.config.bos_id, model.config.eos_ids)
    assert file.config.vocab_size == model.config.vocab_size
    file.check(graph)
    for spec in graph.weights():
        name = graph.tied.get(spec.name, spec.name)
        mine, theirs = (one.checkpoint.read(name) for one in (file, model))
        assert mine.flags.c_contiguous
        np.testing.assert_allclose(
            mine, theirs, rtol=0, atol=near * name.endswith("norm.weight"), err_msg=name
        )


@pytest.mark.parametrize("name", [name for name in CASES if name not in RATES])
def test_a_file_computes_what_its_original_does(name: str, tmp_path: Path) -> None:
    """The same Ops over the same weights give the same bits.  The gains of Gemma are one less in a directory:
    a file's are rounded."""
    assert_same_weights(*both(name, tmp_path), near=2.5e-7 if name.startswith("gemma") else 0)


def test_every_architecture_is_converted() -> None:
    assert {ARCHITECTURES[parity.load(name).model_type] for name in CASES} == set(GGUF_FAMILIES)


def test_llama_3_s_frequencies_have_divisors(tmp_path: Path) -> None:
    ggufs.convert(TINY / "llama3", tmp_path / "model.gguf")
    theirs, ours = (registry.load(path).config for path in (TINY / "llama3", tmp_path))
    for name in ("inv_freq", "attention_factor"):
        found, wanted = (getattr(one.rope.spec(one.heads.head_dim), name) for one in (ours, theirs))
        np.testing.assert_allclose(found, wanted, rtol=2e-7)


@pytest.mark.parametrize("name", RATES)
def test_a_file_of_mamba_has_its_rates(name: str, tmp_path: Path) -> None:
    """Several logarithms may give a rate of the file: all of them compute the same."""
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
    again = RESTORED["ssm_a"].made(rates[:, None])
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
    """One tensor makes keys and values, and heads have the sizes of attention."""
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
"""Encodings that the library can write, and the types that four-bit formats keep of them."""


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: encoding.name)
@pytest.mark.parametrize(
    "case", ["qwen3", "mixtral", "granitemoe", "dbrx", "deepseek_v3", "mamba2-groups", "granitemoehybrid"]
)
def test_blocks_stand_for_what_the_library_says(case: str, encoding: Type, tmp_path: Path) -> None:
    """Experts' blocks are kept as Linears' are; the matrix that makes keys of latents is not: its blocks lie
    along the other axis."""
    model, file = both(case, tmp_path, encoding)
    assert encoding.name in (file.checkpoint.stored_as.kinds or "")
    graph, kept = model.graph(FORMATS["fp32"]), set()
    for spec in graph.weights():
        name = graph.tied.get(spec.name, spec.name)
        fits = spec.role is WeightRole.MATRIX and spec.shape[-1] % 32 == 0
        if not fits or name.endswith("kv_b_proj.k.weight"):
            continue
        values = model.checkpoint.read(name)
        blocks = gguf.dequantize(gguf.quantize(values, encoding), encoding).reshape(values.shape)
        np.testing.assert_array_equal(file.checkpoint.read(name), blocks, name)
        kept.add(type(file.checkpoint.stored(name)))
    assert kept == {ENCODINGS[encoding]}


@pytest.mark.parametrize("encoding", [Type.Q4_0, Type.Q4_1], ids=lambda encoding: encoding.name)
@pytest.mark.parametrize("name", ["mixtral", "olmoe", "gpt_oss", "dbrx", "deepseek_v3"])
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


@pytest.mark.parametrize("name", ["deepseek_v3", "mamba2"])
def test_a_file_answers_as_its_original(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREPIPE_CACHE", str(tmp_path / "cache"))
    speaker = registry.load(TINY / "llama2")
    path = original(name, tmp_path / "original", vocabulary=speaker.config.vocab_size)
    for file in (TINY / "llama2").glob("token*"):
        shutil.copy(file, path)
    file = ggufs.write(path, tmp_path / "model.gguf", speaks=speaker)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)
    answers = []
    for model in (path, file):
        with LLM(str(model), format="bf16", max_model_len=64) as llm:
            answers.append(
                [(one.token_ids, one.logprobs) for one in llm.generate(["one two", "three"], params)]
            )
    assert answers[0] == answers[1]


def test_mxfp4_of_a_file_is_that_of_a_directory(tmp_path: Path) -> None:
    """Values are equal (the library has one zero, the format two), and integers to the bit."""
    _, path = packed_model(tmp_path)
    model = registry.load(path)
    file = registry.load(ggufs.write(path, tmp_path / "model.gguf"))
    assert file.checkpoint.stored_as.kinds == "MXFP4"
    assert_same_weights(model, file)
    for fmt in ("int8", "int4-weights"):
        graph = model.graph(FORMATS[fmt], 64)
        one, other = (InMemoryWeights(graph, reader(graph, each.checkpoint)) for each in (model, file))
        for spec in graph.weights():
            assert one[spec.name].kind == other[spec.name].kind
            if spec.role is WeightRole.MATRIX:
                np.testing.assert_array_equal(one[spec.name].data, other[spec.name].data, spec.name)


def keys(**changed: object) -> dict[str, Any]:
    """Returns keys of the metadata of a file; two underscores stand for a dot."""
    return {"keys": {key.replace("__", "."): value for key, value in changed.items()}}


def tensor(name: str, value: np.ndarray | None) -> dict[str, Any]:
    return {"instead": {name: value}}


ONES = np.ones((5, 1), np.float32)
ONE_EXPERT = r"\.expert_shared_feed_forward_length is 64; only 0 is supported"
NO_WIDTH = r"\.ssm\.inner_size is None; ssm\.time_step_rank, embedding_length and this must be integers"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("granitemoe", keys(expert_shared_feed_forward_length=64), f"granitemoe{ONE_EXPERT}"),
    (
        "granitemoe",
        tensor("blk.0.ffn_up_shexp.weight", ONES),
        r"tensor blk\.0\.ffn_up_shexp\.weight has no place in a model of architecture granitemoe",
    ),
    ("olmoe", keys(expert_weights_scale=2.5), r"olmoe\.expert_weights_scale is 2\.5; only 1\.0 is supported"),
    (
        "deepseek_v2",
        keys(expert_gating_func=4),
        r"deepseek2\.expert_gating_func is 4; only 1 \(softmax\) and 2 \(sigmoid\) are supported",
    ),
    ("deepseek_v2", keys(expert_weights_norm=True), r"deepseek2\.expert_weights_norm is not supported"),
    ("deepseek_v2", keys(attention__kv_lora_rank=None), r"deepseek2\.attention\.kv_lora_rank is missing"),
    (
        "deepseek_v2",
        tensor("blk.1.attn_v_b.weight", None),
        r"tensor .*self_attn\.v_b_proj\.weight is missing",
    ),
    (
        "deepseek_v2",
        tensor("blk.1.attn_kv_b.weight", ONES),
        r"tensor .*\.kv_b_proj\.weight is both whole and",
    ),
    (
        "deepseek_v2",
        tensor("blk.1.attn_k_b.weight", ONES),
        r"blk\.1\.attn_k_b\.weight \[5, 1\] and blk\.1\.attn_v_b\.weight \[3, 20, 40\]: .* cannot be made",
    ),
    (
        "dbrx",
        keys(attention__layer_norm_epsilon=1e-6),
        r"dbrx\.attention\.layer_norm_epsilon is .*; only 1e-05",
    ),
    ("dbrx", keys(expert_count=None), r"dbrx\.expert_count is missing"),
    ("gpt_oss", keys(expert_used_count=8), r"gpt-oss\.expert_used_count must be .* from 1 to 7, not 8"),
    ("gpt_oss", keys(rope__scaling__yarn_ext_factor=0.5), r"gpt-oss\..*\.yarn_ext_factor is 0\.5; only 1\.0"),
    ("mamba2", keys(ssm__inner_size=None), f"mamba2{NO_WIDTH}"),
    (
        "mamba2",
        keys(ssm__inner_size=161),
        r"mamba2\.ssm\.inner_size is 161; no multiple of 5 heads, and of the model's width, 80",
    ),
    (
        "granitemoehybrid",
        keys(attention__scale=None),
        r"granitehybrid\.attention\.scale is None; Bamba is read from safetensors alone",
    ),
    (
        "granitemoehybrid",
        keys(attention__head_count_kv=[0, 2, 0, 1]),
        r"granitehybrid\.attention\.head_count_kv is \[0, 2, 0, 1\]; one number of heads",
    ),
    ("mamba2", tensor("blk.1.ssm_a", ONES), r"tensor blk\.1\.ssm_a holds 1: rates must be negative"),
]


@pytest.mark.parametrize(("name", "changes", "why"), REFUSED)
def test_what_is_not_computed_is_refused_by_name(
    name: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    path = original(name, tmp_path / "original")
    file = ggufs.write(path, tmp_path / "model.gguf", **changes)
    with pytest.raises(UserError, match=rf"model\.gguf: {why}"):
        read_all(file)


def read_all(file: Path) -> None:
    model = registry.load(file)
    graph = model.graph(FORMATS["fp32"])
    model.check(graph)
    for spec in graph.weights():
        model.checkpoint.read(graph.tied.get(spec.name, spec.name))


def test_files_that_do_not_say_groups_have_those_that_were_published(tmp_path: Path) -> None:
    """DeepSeek-V3's files were written before llama.cpp supported groups; others have none."""
    path = original("deepseek_v3", tmp_path / "original")
    unsaid = {"expert_group_count": None, "expert_group_used_count": None, "expert_gating_func": None}
    for experts, groups in ((256, (8, 4)), (21, None)):
        file = ggufs.write(path, tmp_path / "m.gguf", keys={**unsaid, "expert_count": experts})
        found = registry.load(file).config
        assert found.model_type == "deepseek_v3"  # from its corrections
        assert found.groups is None if groups is None else (found.groups.number, found.groups.taken) == groups
