"""GGUF files of every known architecture: names, values and configurations are the original's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.checkpoints.gguf_checkpoint import GgufCheckpoint
from corepipe.models.checkpoints.gguf_config import config_fields
from corepipe.models.checkpoints.gguf_families import GGUF_FAMILIES
from corepipe.models.fields import Fields
from tests.models import ggufs

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, FFN, LAYERS, VOCAB, EXPERTS = 4, 2, 16, 48, 80, 8, 96, 5
ROWS = {"attn_q": HEADS, "attn_k": KV_HEADS}
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 512,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
SHAPES = {
    "token_embd": (VOCAB, HIDDEN),
    "position_embd": (512, HIDDEN),
    "output": (VOCAB, HIDDEN),
    "attn_q": (HEADS * HEAD_DIM, HIDDEN),
    "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_qkv": (QKV, HIDDEN),
    "attn_output": (HIDDEN, HEADS * HEAD_DIM),
    "attn_q_norm": (HEAD_DIM,),
    "attn_k_norm": (HEAD_DIM,),
    "ffn_gate": (FFN, HIDDEN),
    "ffn_up": (FFN, HIDDEN),
    "ffn_down": (HIDDEN, FFN),
    "ffn_gate_inp": (EXPERTS, HIDDEN),
    "ffn_gate_exps": (EXPERTS, FFN, HIDDEN),
    "ffn_up_exps": (EXPERTS, FFN, HIDDEN),
    "ffn_down_exps": (EXPERTS, HIDDEN, FFN),
    "ffn_gate_inp_shexp": (1, HIDDEN),
    "ffn_gate_shexp": (FFN, HIDDEN),
    "ffn_up_shexp": (FFN, HIDDEN),
    "ffn_down_shexp": (HIDDEN, FFN),
    "attn_kv_b": (HEADS * (HEAD_DIM + 8), 40),
    "ssm_conv1d": (HIDDEN, 1, 4),
}
"""Shapes as [out, in]; gains and biases are as wide as the model."""

INTERLEAVED = ("llama", "granite", "granitemoe", "granitehybrid", "smollm3")
"""Architectures whose converters are LlamaModel's, with its permutation of q and k."""
PLUS_ONE = ("gemma", "gemma2", "gemma3")
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
"""Transposed matrices of gpt2."""
APART = {
    "deepseek2": ("attn_k_b", "attn_v_b"),  # instead of attn_kv_b
    "granitehybrid": ("ffn_gate", "ffn_up", "ffn_down"),  # shared experts where there are no others
}
"""Names of other kinds of files: see test_gguf_mixtures."""
IN_ONE = ("experts.gate_proj.weight", "experts.up_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight")
"""Matrices of Granite's mixtures, two of which are one tensor there."""


def originals(arch: str) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yields every weight of the second layer and those outside layers: its two names, and its values in the
    Hugging Face checkpoint."""
    family, rng = GGUF_FAMILIES[arch], np.random.default_rng(5)
    rows = [(f"{hf}.weight", f"{name}.weight", name) for name, hf in family.top.items()]
    rows += [
        (f"{family.layers}1.{hf}.weight", f"blk.1.{name}.weight", name)
        for name, hf in family.layer.items()
        if name not in APART.get(arch, ())
    ]
    rows += [(f"{family.layers}1.{hf}", f"blk.1.{name}", name) for name, hf in family.whole.items()]
    for theirs, ours, stem in rows:
        values = rng.standard_normal(SHAPES.get(stem, (HIDDEN,))).astype(np.float32)
        yield theirs, ours, values.T if arch == "gpt2" and theirs.endswith(TRANSPOSED) else values


def converted(arch: str, name: str, values: np.ndarray) -> np.ndarray:
    """Returns the values that llama.cpp's converter writes, independently of the code that reads them."""
    if arch in INTERLEAVED and "q_proj" in name:
        return ggufs.interleave_halves(values, HEADS)
    if arch in INTERLEAVED and "k_proj" in name:
        return ggufs.interleave_halves(values, KV_HEADS)
    if name.endswith("shared_expert_gate.weight"):
        return values[0]
    if name.endswith(("A_log", ".D", "mixer.norm.weight", "mamba.norm.weight", "conv1d.weight")):
        return mambas(name, values)
    if arch in PLUS_ONE and name.endswith("norm.weight"):
        return values + np.float32(1)
    return values.T if arch == "gpt2" and name.endswith(TRANSPOSED) else values


def mambas(name: str, values: np.ndarray) -> np.ndarray:
    """Returns the values that Mamba2Model writes."""
    if name.endswith("conv1d.weight"):
        return values.squeeze()
    if name.endswith("norm.weight"):
        return values.reshape(KV_HEADS, -1)
    return (-np.exp(values) if name.endswith("A_log") else values).reshape(-1, 1)


@pytest.mark.parametrize("arch", GGUF_FAMILIES)
def test_tensors_are_those_that_were_converted(arch: str, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", arch)
    for theirs, ours, values in originals(arch):
        writer.add_tensor(ours, np.ascontiguousarray(converted(arch, theirs, values)))
    ggufs.close(writer)
    checkpoint = GgufCheckpoint(GgufFile(tmp_path / "model.gguf"), GGUF_FAMILIES[arch], ROWS)
    expected = {theirs: values for theirs, _, values in originals(arch)}
    assert set(checkpoint.names()) == expected.keys()
    for name, values in expected.items():
        got = checkpoint.read(name)
        assert got.flags.c_contiguous
        assert checkpoint.shape(name) == values.shape
        exact = not (arch in PLUS_ONE and name.endswith("norm.weight")) and not name.endswith("A_log")
        near = 0 if exact else 2.5e-7
        np.testing.assert_allclose(got, values, rtol=0, atol=near)


RENAMED = {".sinks": ".sinks.weight", ".dt_bias": ".dt_proj.bias", "correction_bias": "correction.bias"}
"""Names that converters give tensors before they look in the tables (`filter_tensors` of their classes)."""


def renamed(name: str) -> str:
    end = next((end for end in RENAMED if name.endswith(end)), None)
    return name if end is None else name.removesuffix(end) + RENAMED[end]


@pytest.mark.parametrize("arch", GGUF_FAMILIES)
def test_names_are_those_of_the_library_s_tables(arch: str) -> None:
    number = next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    table = gguf.get_tensor_name_map(number, LAYERS)
    for theirs, ours, _ in originals(arch):
        if theirs == "lm_head.weight" and arch in ("gemma", "gemma2"):
            continue  # these are always tied
        if arch in ("granitemoe", "granitehybrid") and theirs.endswith(IN_ONE):
            continue
        assert table.get_name(renamed(theirs), (".weight", ".bias")) == ours


LAYER_TYPES = ["sliding_attention", "full_attention", "full_attention"] * 3
CASES: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "gemma": ("gemma", {"tie_word_embeddings": True}, {}),
    "gemma2": (
        "gemma2",
        {
            "sliding_window": 64,
            "query_pre_attn_scalar": HEAD_DIM,
            "attn_logit_softcapping": 40.0,
            "final_logit_softcapping": 20.0,
            "tie_word_embeddings": True,
        },
        {"attention.sliding_window": 64, "attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0},
    ),
    "gemma3": (
        "gemma3_text",
        {
            "sliding_window": 64,
            "query_pre_attn_scalar": HEAD_DIM,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "tie_word_embeddings": True,
        },
        {
            "attention.sliding_window": 64,
            "rope.freq_base": 1e6,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.5,
            "residual_multiplier": 0.25,
            "logits_scaling": 8.0,
            "rope_theta": 5e4,
        },
        {
            "embedding_scale": 12.0,
            "attention.scale": 0.5,
            "residual_scale": 0.25,
            "logit_scale": 8.0,
            "rope.freq_base": 5e4,
        },
    ),
    "olmo2": ("olmo2", {"rope_theta": 5e5}, {"rope.freq_base": 5e5}),
    "olmoe": (
        "olmoe",
        {"num_experts": EXPERTS, "num_experts_per_tok": 2},
        {"expert_count": EXPERTS, "expert_used_count": 2},
    ),
    "qwen2moe": (
        "qwen2_moe",
        {
            "num_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 72,
        },
        {
            "expert_count": EXPERTS,
            "expert_used_count": 2,
            "expert_feed_forward_length": 24,
            "expert_shared_feed_forward_length": 72,
        },
    ),
    "qwen3moe": (
        "qwen3_moe",
        {
            "num_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
        },
        {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": 24},
    ),
    "llama": (
        "mixtral",
        {"num_local_experts": EXPERTS, "num_experts_per_tok": 2, "rope_theta": 1e6},
        {"expert_count": EXPERTS, "expert_used_count": 2, "rope.freq_base": 1e6},
    ),
    "smollm3": ("smollm3", {"rope_theta": 5e6, "tie_word_embeddings": True}, {"rope.freq_base": 5e6}),
    "stablelm": (
        "stablelm",
        {"layer_norm_eps": 1e-6, "partial_rotary_factor": 0.25, "use_qkv_bias": True},
        {
            "attention.layer_norm_epsilon": 1e-6,
            "use_parallel_residual": False,
            "rope.dimension_count": HEAD_DIM // 4,
        },
    ),
    "starcoder2": (
        "starcoder2",
        {"norm_epsilon": 1e-6, "use_bias": True, "rope_theta": 1e5, "tie_word_embeddings": False},
        {"attention.layer_norm_epsilon": 1e-6, "rope.freq_base": 1e5},
    ),
    "phi3": (
        "phi3",
        {"sliding_window": 64, "partial_rotary_factor": 0.75},
        {"attention.sliding_window": 64, "rope.dimension_count": HEAD_DIM * 3 // 4},
    ),
    "gpt2": (
        "gpt2",
        {
            "n_embd": HIDDEN,
            "n_layer": LAYERS,
            "n_head": 3,
            "n_inner": 4 * HIDDEN,
            "n_positions": 512,
            "layer_norm_epsilon": 1e-6,
        },
        {
            "attention.head_count": 3,
            "feed_forward_length": 4 * HIDDEN,
            "attention.layer_norm_epsilon": 1e-6,
        },
    ),
}
"""Architectures with their model_type, keys of config.json, and the keys that the converter writes."""
WRITTEN = {
    "context_length": 512,
    "embedding_length": HIDDEN,
    "block_count": LAYERS,
    "feed_forward_length": FFN,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.key_length": HEAD_DIM,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
BIASED = {
    "stablelm": ("attn_q",),
    "qwen2moe": ("attn_q",),
    "starcoder2": ("attn_q", "attn_output", "ffn_down"),
}


def write_metadata(path: Path, arch: str, values: dict[str, object]) -> GgufFile:
    writer = gguf.GGUFWriter(path, arch)
    for key, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(f"{arch}.{key}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"{arch}.{key}", value)
        elif isinstance(value, float):
            writer.add_key_value(f"{arch}.{key}", value, gguf.GGUFValueType.FLOAT64)
        elif isinstance(value, list):
            writer.add_array(f"{arch}.{key}", value)
        else:
            writer.add_string(f"{arch}.{key}", str(value))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_tensor("token_embd.weight", np.zeros((VOCAB, 1), np.float32))
    tied = CASES[arch][1].get("tie_word_embeddings", arch == "gpt2")
    if not tied:
        writer.add_tensor("output.weight", np.zeros((VOCAB, 1), np.float32))
    for stem in BIASED.get(arch, ()):
        writer.add_tensor(f"blk.0.{stem}.bias", np.zeros(1, np.float32))
    ggufs.close(writer)
    return GgufFile(path)


@pytest.mark.parametrize("arch", CASES)
def test_the_configuration_is_the_original_s(arch: str, tmp_path: Path) -> None:
    model_type, keys, written = CASES[arch]
    plain = {} if arch == "gpt2" else BASE
    theirs = {**plain, "vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, **keys}
    expected = Fields(Path("config.json"), {**theirs, "model_type": model_type})
    base = dict(WRITTEN)
    if arch == "gpt2":
        for key in ("attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon"):
            del base[key]
    ours = config_fields(write_metadata(tmp_path / "model.gguf", arch, {**base, **written}))
    assert registry.Architecture("x", ours).config == registry.Architecture("x", expected).config


def test_gemmas_largest_models_have_another_scale(tmp_path: Path) -> None:
    """llama.cpp recognises them by the number of layers: 46 of Gemma 2 27B, 62 of Gemma 3 27B."""
    for arch, layers in (("gemma2", 46), ("gemma3", 62)):
        written = {**WRITTEN, **CASES[arch][2], "block_count": layers}
        fields = config_fields(write_metadata(tmp_path / f"{arch}.gguf", arch, written))
        assert fields.integer("query_pre_attn_scalar", 1000) == HIDDEN // HEADS


def test_layers_that_a_file_tells_apart(tmp_path: Path) -> None:
    """The array has an entry a layer; a file without a window has none anywhere."""
    pattern = [kind == "sliding_attention" for kind in LAYER_TYPES[:LAYERS]]
    written = {**WRITTEN, **CASES["gemma3"][2], "attention.sliding_window_pattern": pattern}
    fields = config_fields(write_metadata(tmp_path / "a.gguf", "gemma3", written))
    windows = registry.Architecture("x", fields).config.windows
    assert windows == tuple(64 if one else None for one in pattern)
    del written["attention.sliding_window"], written["attention.sliding_window_pattern"]
    fields = config_fields(write_metadata(tmp_path / "b.gguf", "gemma3", written))
    assert set(registry.Architecture("x", fields).config.windows) == {None}


def test_olmo_3_is_filed_under_olmo_2(tmp_path: Path) -> None:
    pattern = [(layer + 1) % 4 != 0 for layer in range(LAYERS)]
    written = {**WRITTEN, "attention.sliding_window": 64, "attention.sliding_window_pattern": pattern}
    fields = config_fields(write_metadata(tmp_path / "a.gguf", "olmo2", written))
    assert fields.text("model_type") == "olmo3"
    kinds = ["sliding_attention" if one else "full_attention" for one in pattern]
    assert fields.values["layer_types"] == kinds


def test_factors_of_long_contexts_are_tensors(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "phi3")
    for key, value in {**WRITTEN, "rope.scaling.original_context_length": 256}.items():
        write = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        write(f"phi3.{key}", value)
    writer.add_float32("phi3.rope.scaling.attn_factor", 1.25)
    writer.add_uint32("phi3.attention.sliding_window", 0)
    for name, first in (("long", 4.0), ("short", 1.0)):
        writer.add_tensor(f"rope_factors_{name}.weight", np.arange(first, first + 8, dtype=np.float32))
    ggufs.close(writer)
    fields = config_fields(GgufFile(tmp_path / "a.gguf"))
    assert not fields.has("sliding_window")
    assert fields.integer("original_max_position_embeddings", 1000) == 256
    assert fields.values["rope_scaling"] == {
        "rope_type": "longrope",
        "short_factor": [float(i) for i in range(1, 9)],
        "long_factor": [float(i) for i in range(4, 12)],
        "attention_factor": 1.25,
    }


@pytest.mark.parametrize(
    ("arch", "why"),
    [
        ("mamba", r"general\.architecture 'mamba' is not supported in a GGUF file \(known: llama, "),
        ("x\n", r"general\.architecture 'x\\n' is not supported"),
    ],
)
def test_other_architectures_are_refused_by_name(arch: str, why: str, tmp_path: Path) -> None:
    ggufs.close(gguf.GGUFWriter(tmp_path / "a.gguf", arch))
    with pytest.raises(UserError, match=why) as caught:
        registry.load(tmp_path / "a.gguf")
    assert str(tmp_path / "a.gguf") in caught.value.message


def test_a_scale_of_a_whole_tensor_is_refused(tmp_path: Path) -> None:
    """NVFP4 has such scales: the values of the blocks alone would be wrong."""
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.scale", np.ones(1, np.float32))
    ggufs.close(writer)
    with pytest.raises(UserError, match=r"a\.gguf: tensor blk\.0\.ffn_up\.scale: scales of whole tensors"):
        GgufCheckpoint(GgufFile(tmp_path / "a.gguf"), GGUF_FAMILIES["llama"], ROWS)
