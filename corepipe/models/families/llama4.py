"""Llama 4, the text decoder: one routed and one shared expert a token, in every layer or every other one.

Three layers of four attend to chunks of `attention_chunk_size` positions: from the last multiple of it on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from corepipe.models.config import ModelConfig, common, sliding_windows
from corepipe.models.expert_weights import turned
from corepipe.models.families import llama, moe
from corepipe.models.families.blocks import gated_mlp
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.moe import MoeConfig
from corepipe.models.families.windows import Windows, rotated
from corepipe.models.fields import MAX_FFN, MAX_LAYERS, MAX_POSITIONS, Fields
from corepipe.models.weight_map import WeightMap, rotated_pairs
from corepipe.neuron.numerics.attention import Tempering
from corepipe.neuron.ops import Scoring
from corepipe.neuron.values import Value

DEFAULTS: dict[str, object] = {
    "head_dim": 128,
    "num_key_value_heads": 8,
    "intermediate_size_mlp": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "num_experts_per_tok": 1,
}
"""Defaults of configs, from transformers' Llama4TextConfig."""

CHUNK = "attention_chunk_size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4Config(MoeConfig):
    """`normed`: queries and keys are normalised to length 1, times a factor, in layers with positions;
    `tempering`: of queries in the other layers."""

    normed: bool
    tempering: Tempering | None


def configure(fields: Fields) -> Llama4Config:
    """Reads the config: `intermediate_size` is an expert's, `intermediate_size_mlp` a dense layer's."""
    text = fields.section("text_config")
    if text is not None:
        fields = text.replace("model_type", fields.text("model_type"))
    for key, value in DEFAULTS.items():
        fields = fields.defaulting(key, value)
    width = moe.expert_width(fields, "intermediate_size")
    dense = fields.integer("intermediate_size_mlp", MAX_FFN)
    return Llama4Config(
        **_attending(fields, common(fields.replace("intermediate_size", dense))).values(),
        **moe.expert_counts(fields, "num_local_experts", "num_experts_per_tok"),
        expert_ffn=width,
        shared_ffn=width,
        sparse=_sparse(fields),
        scoring=Scoring.INPUT_SIGMOID,
        normed=fields.flag("use_qk_norm", default=True),
        tempering=_tempering(fields),
    )


def _attending(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Adds biases, chunks and positions of layers; `attention_bias` is for all four attention linears."""
    bias, knows = fields.flag("attention_bias"), rotated(fields, config.num_layers)
    ropes = tuple(config.rope if known else None for known in knows)
    windows = _windows(fields, knows)
    return replace(config, qkv_bias=bias, out_bias=bias, windows=windows, layer_ropes=ropes)


def _windows(fields: Fields, knows: tuple[bool, ...]) -> Windows:
    """Reads the chunks: layers with positions have them unless `layer_types` decides; null: none."""
    none = CHUNK in fields.values and not fields.has(CHUNK)
    size = None if none else fields.integer(CHUNK, MAX_POSITIONS, default=8192)
    if not fields.has("layer_types"):
        return tuple(size if known else None for known in knows)
    kinds = sliding_windows(fields, size or 0, 0, len(knows), "chunked_attention")
    if none and any(kind is not None for kind in kinds):
        raise fields.error(CHUNK, "is missing, and layer_types has chunked_attention")
    return kinds


def _sparse(fields: Fields) -> tuple[bool, ...]:
    """Reads the layers with experts: those in `moe_layers`, or each `interleave_moe_layer_step`-th."""
    layers = range(fields.integer("num_hidden_layers", MAX_LAYERS))
    step = fields.integer("interleave_moe_layer_step", MAX_LAYERS, default=1)
    if not fields.has("moe_layers"):
        return tuple((layer + 1) % step == 0 for layer in layers)
    listed = fields.items("moe_layers")
    if any(isinstance(layer, bool) or layer not in layers for layer in listed):
        raise fields.error("moe_layers", f"must be a list of layers from 0 to {len(layers) - 1}")
    return tuple(layer in listed for layer in layers)


def _tempering(fields: Fields) -> Tempering | None:
    """Reads the tempering; `attn_temperature_tuning` is a flag, in the first configs a number."""
    key = "attn_temperature_tuning"
    if isinstance(fields.values.get(key), int):
        fields = fields.replace(key, bool(fields.values[key]))
    if not fields.flag(key, default=True):
        return None
    every, by = fields.number("floor_scale", 1, 1e9, 8192), fields.number("attn_scale", 0.0, 1e6, 0.1)
    return Tempering(every, by)


def weights(config: Llama4Config) -> WeightMap:
    """Maps rotated pairs, which lie side by side also in layers without rotation; the decoder of a multimodal
    model has its own prefixes."""
    return WeightMap(
        prefixes=("language_model.model.", "model.language_model.", ""),
        spellings=(("lm_head", "language_model.lm_head"),),
        parts=rotated_pairs(config.heads),
        experts=turned(config.experts, config.expert_ffn, config.hidden_size),
    )


def build(b: GraphBuilder, config: Llama4Config) -> None:
    feed_forward, attend = partial(_feed_forward, config), partial(_attention, config)
    llama.build(b, config, feed_forward, attend)


def _attention(config: Llama4Config, b: GraphBuilder, x: Value) -> Value:
    knows = config.rope_of(b.layer) is not None
    return llama.attention(
        b,
        x,
        chunked=config.windows[b.layer] is not None,
        head_eps=config.eps if knows and config.normed else None,
        tempering=None if knows else config.tempering,
    )


def _feed_forward(config: Llama4Config, b: GraphBuilder, x: Value) -> Value:
    prefix = f"model.layers.{b.layer}.feed_forward"
    if not config.sparse[b.layer]:
        return gated_mlp(b, x, prefix)
    routed = moe.experts(b, x, prefix, config, "router")
    return b.add(routed, moe.shared(b, x, f"{prefix}.shared_expert", config))
