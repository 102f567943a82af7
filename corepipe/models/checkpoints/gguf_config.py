"""GGUF metadata in the words of a Hugging Face config, so that one reader serves both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.checkpoint import missing
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.checkpoints.gguf_families import GGUF_FAMILIES, GgufFamily
from corepipe.models.config import MAX_HEAD_DIM, MAX_LAYERS, Fields

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


def config_fields(file: GgufFile) -> Fields:
    """The metadata under config.json's keys; complaints show GGUF's own keys.

    Raises UserError for variants of these architectures that this package does not describe.
    """
    arch = architecture(file)
    found = gguf_family(file)
    keys = {**KEYS, **found.keys}
    values: dict[str, object] = {key: file.metadata.get(f"{arch}.{name}") for key, name in keys.items()}
    shown = {key: f"{arch}.{name}" for key, name in keys.items()}
    shown["rope_freq_factors"] = "tensor rope_freqs.weight"
    shown |= {f"rope_scaling.{key}": f"{arch}.{name}" for key, name in SCALING_KEYS.items()}
    values["model_type"] = found.model_type
    if values["vocab_size"] is None and "token_embd.weight" in file.tensors:
        values["vocab_size"] = file.tensors["token_embd.weight"].shape[0]
    _refuse_variants(file, found, values)
    values |= _scaling(file) | _biases(file, found) | _special_ids(file)
    values["tie_word_embeddings"] = "output.weight" not in file.tensors
    if arch in VARIANTS:
        values |= VARIANTS[arch](file, values)
    return Fields(file.path, {key: value for key, value in values.items() if value is not None}, shown)


def architecture(file: GgufFile) -> str:
    """`general.architecture`, the prefix of the model's keys."""
    arch = file.metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise UserError(f"{file.path}: general.architecture is missing")
    if arch not in GGUF_FAMILIES:
        raise UserError(
            f"{file.path}: general.architecture {shown(repr(arch), 60)} is not supported in a GGUF file "
            f"(known: {', '.join(GGUF_FAMILIES)})"
        )
    return arch


def gguf_family(file: GgufFile) -> GgufFamily:
    """How the file's names and values are to be read."""
    return GGUF_FAMILIES[architecture(file)]


def _refuse_variants(file: GgufFile, family: GgufFamily, values: dict[str, object]) -> None:
    arch = architecture(file)
    if "expert_count" not in family.keys.values() and file.metadata.get(f"{arch}.expert_count"):
        raise UserError(f"{file.path}: {arch}.expert_count: mixtures of experts are not supported")
    hidden, heads, head_dim = (values[k] for k in ("hidden_size", "num_attention_heads", "head_dim"))
    if head_dim is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        head_dim = hidden // heads
    rotated = file.metadata.get(f"{arch}.rope.dimension_count")
    if family.partial and isinstance(rotated, int) and isinstance(head_dim, int) and head_dim > 0:
        values["partial_rotary_factor"] = rotated / head_dim
    for key, only in (
        *(() if family.partial else (("rope.dimension_count", head_dim),)),
        ("attention.value_length", head_dim),
        *(() if arch == "phi3" else (("rope.scaling.attn_factor", 1.0),)),
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
    return {"rope_freq_factors": _factors(file, "rope_freqs.weight")}


def _factors(file: GgufFile, name: str) -> tuple[float, ...]:
    """A tensor of divisors of frequencies."""
    if name not in file.tensors:
        raise missing(file.path, name)
    shape = file.tensors[name].shape
    if len(shape) != 1 or shape[0] > MAX_HEAD_DIM:
        raise UserError(f"{file.path}: tensor {name} has shape {list(shape)}, more than a head")
    return tuple(file.read(name).tolist())


def _biases(file: GgufFile, family: GgufFamily) -> dict[str, object]:
    """GGUF has no key for biases: the tensors tell."""
    present = {key for key, stem in family.biases.items() if f"blk.0.{stem}.bias" in file.tensors}
    if "blk.0.attn_q.bias" in file.tensors and not present:
        raise UserError(f"{file.path}: biases on q, k and v alone are not supported for this architecture")
    return {key: key in present for key in family.biases}


def _special_ids(file: GgufFile) -> dict[str, object]:
    """bos, and all ids that end an answer: end of text, of turn, of message."""
    ends = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return {
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [end for end in ends if end is not None],
    }


def _mistral(_file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """llama.cpp files Mistral under llama, which its window tells apart, if anything, and Mixtral."""
    if values["num_local_experts"]:
        return {"model_type": "mixtral"}
    return {"model_type": "mistral" if values["sliding_window"] is not None else "llama"}


def _qwen3_moe(_file: GgufFile, _values: dict[str, object]) -> dict[str, object]:
    """Not written: llama.cpp makes the weights of Qwen3's experts sum to 1, and no others' of these."""
    return {"norm_topk_prob": True}


def _gemma2(_file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """The scale of the scores is not written: a head's size; the 27B's is the width a head."""
    return {"query_pre_attn_scalar": _query_scale(values, layers_of_27b=46)}


def _gemma3(file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """One base is written, that of the layers without a window, if any; the others' is 10,000."""
    found: dict[str, object] = {"query_pre_attn_scalar": _query_scale(values, layers_of_27b=62)}
    if values["rope_theta"] is None:
        found["rope_theta"] = 1e6
    if values["rope_local_base_freq"] is None:
        found["rope_local_base_freq"] = 1e4
    return found | _layer_types(file, values)


def _query_scale(values: dict[str, object], layers_of_27b: int) -> object:
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    is_27b = values["num_hidden_layers"] == layers_of_27b
    if is_27b and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        return hidden // heads
    return values["head_dim"]


def _layer_types(file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """Which layers have a window, where the file says it or has none."""
    layers = values["num_hidden_layers"]
    if values["sliding_window"] is None and isinstance(layers, int):
        return {"layer_types": ["full_attention"] * min(layers, MAX_LAYERS)}
    pattern = file.metadata.get(f"{architecture(file)}.attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return {"layer_types": ["sliding_attention" if one else "full_attention" for one in pattern]}
    return {} if pattern is None else {"sliding_window_pattern": pattern}


def _olmo2(file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """OLMo 3 is OLMo 2 with windows."""
    if values["sliding_window"] is None:
        return {}
    return {"model_type": "olmo3", **_layer_types(file, values)}


def _stablelm(file: GgufFile, _values: dict[str, object]) -> dict[str, object]:
    return {"qk_layernorm": "blk.0.attn_q_norm.weight" in file.tensors}


def _phi3(file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """Factors of long contexts are tensors; a window of 0 is none."""
    found: dict[str, object] = {} if values["sliding_window"] else {"sliding_window": None}
    if "rope_factors_long.weight" not in file.tensors:
        return found
    scaling: dict[str, object] = {
        f"{name}_factor": list(_factors(file, f"rope_factors_{name}.weight")) for name in ("short", "long")
    }
    scaling["attention_factor"] = file.metadata.get("phi3.rope.scaling.attn_factor")
    return {**found, "rope_scaling": {"rope_type": "longrope", **scaling}}


VARIANTS: Mapping[str, Callable[[GgufFile, dict[str, object]], dict[str, object]]] = MappingProxyType(
    {
        "llama": _mistral,
        "gemma2": _gemma2,
        "gemma3": _gemma3,
        "olmo2": _olmo2,
        "phi3": _phi3,
        "qwen3moe": _qwen3_moe,
        "stablelm": _stablelm,
    }
)
"""What a config.json says that the metadata says otherwise, or leave to whoever reads them."""
