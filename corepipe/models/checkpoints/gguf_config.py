"""GGUF metadata in the words of a Hugging Face config, so that one reader serves both."""

from __future__ import annotations

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.config import MAX_HEAD_DIM, Fields

KEYS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
    "vocab_size": "vocab_size",
}
SCALING_KEYS = {
    "rope_type": "rope.scaling.type",
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}
ARCHITECTURES = ("llama", "qwen2", "qwen3")


def config_fields(file: GgufFile) -> Fields:
    """The metadata under config.json's keys; complaints show GGUF's own keys.

    Raises UserError for variants of these architectures that this package does not compute.
    """
    arch = architecture(file)
    values: dict[str, object] = {key: file.metadata.get(f"{arch}.{name}") for key, name in KEYS.items()}
    shown = {key: f"{arch}.{name}" for key, name in KEYS.items()}
    shown["rope_freq_factors"] = "tensor rope_freqs.weight"
    shown |= {f"rope_scaling.{key}": f"{arch}.{name}" for key, name in SCALING_KEYS.items()}
    # llama.cpp files Mistral under llama; what tells it apart, if anything, is its window.
    windowed = arch == "llama" and values["sliding_window"] is not None
    values["model_type"] = "mistral" if windowed else arch
    if values["vocab_size"] is None and "token_embd.weight" in file.tensors:
        values["vocab_size"] = file.tensors["token_embd.weight"].shape[0]
    _refuse_variants(file, values)
    values |= _scaling(file) | _biases(file) | _special_ids(file)
    values["tie_word_embeddings"] = "output.weight" not in file.tensors
    return Fields(file.path, values, shown)


def architecture(file: GgufFile) -> str:
    """`general.architecture`, the prefix of the model's keys."""
    arch = file.metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise UserError(f"{file.path}: general.architecture is missing")
    if arch not in ARCHITECTURES:
        raise UserError(
            f"{file.path}: architecture {shown(repr(arch), 60)} is not supported in a GGUF file "
            f"(known: {', '.join(ARCHITECTURES)})"
        )
    return arch


def _refuse_variants(file: GgufFile, values: dict[str, object]) -> None:
    arch = architecture(file)
    if file.metadata.get(f"{arch}.expert_count"):
        raise UserError(f"{file.path}: {arch}.expert_count: mixtures of experts are not supported")
    hidden, heads, head_dim = (values[k] for k in ("hidden_size", "num_attention_heads", "head_dim"))
    if head_dim is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        head_dim = hidden // heads
    for key, only in (
        ("rope.dimension_count", head_dim),
        ("attention.value_length", head_dim),
        ("rope.scaling.attn_factor", 1.0),
        ("rope.scale_linear", 1.0),
    ):
        value = file.metadata.get(f"{arch}.{key}")
        if value is not None and value != only:
            raise UserError(
                f"{file.path}: {arch}.{key} is {shown(repr(value), 40)}; only {only} is supported"
            )


def _scaling(file: GgufFile) -> dict[str, object]:
    """Rope scaling by name, or llama3's as divisors of the frequencies (tensor rope_freqs.weight)."""
    arch = architecture(file)
    scaling = {key: file.metadata.get(f"{arch}.{name}") for key, name in SCALING_KEYS.items()}
    if scaling["rope_type"] not in (None, "none"):
        return {"rope_scaling": {key: value for key, value in scaling.items() if value is not None}}
    if "rope_freqs.weight" not in file.tensors:
        return {}
    shape = file.tensors["rope_freqs.weight"].shape
    if len(shape) != 1 or shape[0] > MAX_HEAD_DIM:
        raise UserError(f"{file.path}: tensor rope_freqs.weight has shape {list(shape)}, more than a head")
    return {"rope_freq_factors": tuple(file.read("rope_freqs.weight").tolist())}


def _biases(file: GgufFile) -> dict[str, object]:
    """GGUF has no key for biases: the tensors tell."""
    present = {name for name in file.tensors if name.startswith("blk.0.") and name.endswith(".bias")}
    if (
        "blk.0.attn_q.bias" in present
        and architecture(file) != "qwen2"
        and "blk.0.attn_output.bias" not in present
    ):
        raise UserError(f"{file.path}: biases on q, k and v alone are supported for qwen2 only")
    return {
        "attention_bias": "blk.0.attn_output.bias" in present,
        "mlp_bias": "blk.0.ffn_down.bias" in present,
    }


def _special_ids(file: GgufFile) -> dict[str, object]:
    """bos, and all ids that end an answer: end of text, of turn, of message."""
    ends = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return {
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [end for end in ends if end is not None],
    }
