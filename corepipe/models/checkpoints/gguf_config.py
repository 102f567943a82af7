"""Converts GGUF metadata to the keys of a Hugging Face config, so that one reader serves both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.checkpoints.gguf_families import GGUF_FAMILIES, GgufFamily
from corepipe.models.checkpoints.gguf_variants import VARIANTS, decimal, factors
from corepipe.models.fields import Fields

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
    "attention_factor": "rope.scaling.yarn_attn_factor",
}
ONLY: Mapping[str, object] = MappingProxyType(
    {
        "rope.scaling.attn_factor": 1.0,
        "rope.scaling.yarn_ext_factor": 1.0,
        "rope.scale_linear": 1.0,
        "expert_shared_count": 0,
        "expert_shared_feed_forward_length": 0,
        "expert_group_count": 1,
        "expert_weights_scale": 1.0,
        "interleave_moe_layer_step": 1,
        "nextn_predict_layers": 0,
    }
)
"""The only values of keys that are accepted in a family that does not read them."""
UNSET = (-1, 2**32 - 1, 2**64 - 1)
"""The ids that writers use for a token that does not exist, signed and unsigned."""


def config_fields(file: GgufFile) -> Fields:
    """Returns the metadata under config.json's keys; errors show GGUF's own keys.

    Raises UserError for variants of these architectures that this package does not implement.
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
    return Fields(file.path, _nested({key: decimal(value) for key, value in values.items()}), shown)


def _nested(values: Mapping[str, object]) -> dict[str, object]:
    """Returns the values that are not None; a key with a dot goes into an object."""
    found: dict[str, object] = {}
    sections: dict[str, dict[str, object]] = {}
    for key, value in values.items():
        section, dot, name = key.partition(".")
        if value is not None:
            (sections.setdefault(section, {}) if dot else found)[name or key] = value
    return found | sections


def architecture(file: GgufFile) -> str:
    """Returns `general.architecture`, the prefix of the model's keys."""
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
    """Returns how the file's names and values are to be read."""
    return GGUF_FAMILIES[architecture(file)]


def _refuse_variants(file: GgufFile, family: GgufFamily, values: dict[str, object]) -> None:
    arch = architecture(file)
    if "expert_count" not in family.keys.values() and file.metadata.get(f"{arch}.expert_count"):
        raise UserError(f"{file.path}: {arch}.expert_count: mixtures of experts are not supported")
    for key, only in (*ONLY.items(), *_head_sizes(file, family, values)):
        value = file.metadata.get(f"{arch}.{key}")
        if value and value != only and key not in family.keys.values():
            raise UserError(
                f"{file.path}: {arch}.{key} is {shown(repr(value), 40)}; only {only} is supported"
            )


def _head_sizes(
    file: GgufFile, family: GgufFamily, values: dict[str, object]
) -> Iterator[tuple[str, object]]:
    """Yields the values required of keys about heads, which have one size and are rotated whole or partly."""
    if family.own_heads:
        return
    hidden, heads, head_dim = (values[k] for k in ("hidden_size", "num_attention_heads", "head_dim"))
    if head_dim is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        head_dim = hidden // heads
    yield "attention.value_length", head_dim
    rotated = file.metadata.get(f"{architecture(file)}.rope.dimension_count")
    if not family.partial:
        yield "rope.dimension_count", head_dim
    elif isinstance(rotated, int) and isinstance(head_dim, int) and head_dim > 0:
        values["partial_rotary_factor"] = rotated / head_dim


def _scaling(file: GgufFile) -> dict[str, object]:
    """Reads rope scaling by name, or llama3's as divisors of the frequencies (tensor rope_freqs.weight)."""
    arch = architecture(file)
    scaling = {key: file.metadata.get(f"{arch}.{name}") for key, name in SCALING_KEYS.items()}
    if scaling["rope_type"] not in (None, "none") or scaling["factor"] not in (None, 0, 1):
        return {"rope_scaling": {key: value for key, value in scaling.items() if value is not None}}
    if "rope_freqs.weight" not in file.tensors:
        return {}
    return {"rope_freq_factors": factors(file, "rope_freqs.weight")}


def _biases(file: GgufFile, family: GgufFamily) -> dict[str, object]:
    """Finds biases from the tensors of any layer: GGUF has no key for them."""
    biased = {name.split(".")[-2] for name in file.tensors if name.endswith(".bias")}
    present = {key for key, stem in family.biases.items() if stem in biased}
    if "attn_q" in biased and not present:
        raise UserError(f"{file.path}: biases on q, k and v alone are not supported for this architecture")
    return {key: key in present for key in family.biases}


def _special_ids(file: GgufFile) -> dict[str, object]:
    """Returns bos, and all ids that end an answer: end of text, of turn, of message."""
    ends = [token_id(file, name) for name in ("eos", "eot", "eom")]
    return {
        "bos_token_id": token_id(file, "bos"),
        "eos_token_id": [end for end in ends if end is not None],
    }


def token_id(file: GgufFile, name: str) -> object:
    """Returns the id of a special token in the file; None where it has none."""
    value = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return None if value in UNSET else value
