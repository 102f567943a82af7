"""A model's configuration, read from a Hugging Face config.json or from GGUF metadata, and checked once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from corepipe.models.fields import (
    MAX_FFN,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    Fields,
)
from corepipe.models.rope import RopeConfig
from corepipe.models.rope_fields import either, read_rope, rope_section
from corepipe.neuron.axes import HeadLayout
from corepipe.neuron.formats import Function

FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "silu": Function.SILU,
        "swish": Function.SILU,
        "gelu": Function.GELU,
        "gelu_python": Function.GELU,
        "gelu_new": Function.GELU_TANH,
        "gelu_fast": Function.GELU_TANH,
        "gelu_pytorch_tanh": Function.GELU_TANH,
        "relu": Function.RELU,
    }
)
"""Activation functions by transformers' names."""

SILU = ("silu", "swish")


class Norm(StrEnum):
    """Kinds of norm over the residual stream."""

    RMS = "rms"
    LAYER = "layer"
    LAYER_NO_BIAS = "layer without bias"
    LAYER_PLAIN = "layer without gain and bias"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The configuration that all transformers share, with the options of Llama's relatives; families extend
    it.

    `windows` has one entry a layer: the number of latest positions it attends to, None for all. `layer_ropes`
    has one entry a layer where they differ: its rotary embedding, None for none; otherwise all layers use
    `rope`. `qkv_bias`, `out_bias` and `mlp_bias` say which linears carry a bias; `head_norms`: there are
    norms over each query and key head; `qkv_clip`: the bound of queries, keys and values on both sides.
    `function` is the activation of the feed-forward; `rotary_dim` the number of elements of a head that are
    rotated (None: all). `eos_ids` are all ids that end an answer.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    heads: HeadLayout
    ffn_size: int
    eps: float
    rope: RopeConfig
    max_positions: int
    windows: tuple[int | None, ...]
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False
    qkv_clip: float | None = None
    function: Function = Function.SILU
    rotary_dim: int | None = None
    norm: Norm = Norm.RMS
    layer_ropes: tuple[RopeConfig | None, ...] = ()
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def rope_of(self, layer: int) -> RopeConfig | None:
        """Returns the rotary embedding of a layer, None for a layer without positions."""
        return self.layer_ropes[layer] if self.layer_ropes else self.rope

    def values(self) -> dict[str, Any]:
        """Returns all fields by name, for the constructor of a family's larger config."""
        return {f.name: getattr(self, f.name) for f in dataclass_fields(self)}


def qkv_clip(fields: Fields) -> float | None:
    """Reads the bound of queries, keys and values from `clip_qkv`; None where it is absent."""
    return fields.number("clip_qkv", 1e-6, 1e6) if fields.has("clip_qkv") else None


def common(
    fields: Fields, functions: Collection[str] = SILU, rotary_share: float | None = None
) -> ModelConfig:
    """Reads the keys that mean the same in every family; families replace what they read differently.

    `functions` are the allowed values of `hidden_act`, the first being the default. `rotary_share` is the
    share of a head that is rotated where `partial_rotary_factor` is absent; None: all of a head is rotated,
    and the key is not read.
    """
    function = fields.require("hidden_act", tuple(functions), next(iter(functions)))
    hidden = fields.integer("hidden_size", MAX_HIDDEN)
    layers = fields.integer("num_hidden_layers", MAX_LAYERS)
    heads = _heads(fields, hidden)
    rotary = None if rotary_share is None else _rotary_dim(fields, heads, rotary_share)
    rope = read_rope(fields, rotary or heads.head_dim, partial=rotary is not None)
    return ModelConfig(
        model_type=fields.text("model_type"),
        vocab_size=fields.integer("vocab_size", MAX_VOCAB),
        hidden_size=hidden,
        num_layers=layers,
        heads=heads,
        ffn_size=fields.integer("intermediate_size", MAX_FFN),
        eps=fields.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        rope=rope,
        max_positions=_max_positions(fields, rope),
        windows=(None,) * layers,
        tied=fields.flag("tie_word_embeddings"),
        function=FUNCTIONS[function],
        rotary_dim=rotary,
        bos_id=next(iter(fields.ids("bos_token_id")), None),
        eos_ids=fields.ids("eos_token_id"),
    )


def without_rope(fields: Fields) -> Fields:
    """Removes the keys of rotary scaling, for timed families: they change no time, so they are not read."""
    return fields.without("rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor")


def _rotary_dim(fields: Fields, heads: HeadLayout, default: float) -> int:
    """Returns the number of rotated elements of a head, from their share of it."""
    source = either(fields, rope_section(fields), "partial_rotary_factor")
    share = source.number("partial_rotary_factor", 0.0, 1.0, default)
    return max(2, int(share * heads.head_dim) // 2 * 2)


def _heads(fields: Fields, hidden: int) -> HeadLayout:
    heads = fields.integer("num_attention_heads", MAX_HEADS)
    kv_heads = fields.integer("num_key_value_heads", MAX_HEADS, default=heads)
    if heads % kv_heads:
        raise fields.error(
            "num_attention_heads", f"({heads}) is not a multiple of {kv_heads} key/value heads"
        )
    if not fields.has("head_dim") and hidden % heads:
        raise fields.error(
            "hidden_size", f"({hidden}) is not a multiple of {heads} heads, and head_dim is not given"
        )
    head_dim = fields.integer("head_dim", MAX_HEAD_DIM, default=max(1, hidden // heads))
    if head_dim % 2:
        raise fields.error("head_dim", f"({head_dim}) must be even for rotary embedding")
    return HeadLayout(heads, kv_heads, head_dim)


def _max_positions(fields: Fields, rope: RopeConfig) -> int:
    """Returns the longest context that the model claims; yarn's factor stretches the trained length."""
    claimed = fields.integer("max_position_embeddings", MAX_POSITIONS)
    if rope.kind != "yarn":
        return claimed
    return min(MAX_POSITIONS, max(claimed, int(rope.factor * rope.original_max_positions)))


def sliding_windows(
    fields: Fields, window: int | None, first_layer: int, layers: int, name: str = "sliding_attention"
) -> tuple[int | None, ...]:
    """Returns one window a layer: for those of kind `name` in `layer_types`, else from `first_layer` on."""
    kinds = fields.values.get("layer_types")
    if kinds is None:
        return tuple(window if layer >= first_layer else None for layer in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.error("layer_types", f"must be a list of {layers} names")
    for kind in kinds:
        if kind not in ("full_attention", name):
            raise fields.error("layer_types", f"holds {kind!r:.60} (known: full_attention, {name})")
    return tuple(window if kind == name else None for kind in kinds)
