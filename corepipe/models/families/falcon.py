"""Falcon: few key/value heads, attention and feed-forward side by side; no biases, a tied head."""

from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.blocks import Projected, fused
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import MAX_HEADS, Fields
from corepipe.models.weight_map import WeightMap, heads_by_group
from corepipe.neuron.numerics.attention import alibi_slopes
from corepipe.neuron.values import Value

TRAINED_POSITIONS = 2048


@dataclass(frozen=True, slots=True)
class FalconConfig(ModelConfig):
    """`norms` of a layer: one for both blocks, or one each. `alibi`: it replaces rotary positions."""

    parallel: bool = True
    norms: int = 1
    alibi: bool = False


def configure(fields: Fields) -> FalconConfig:
    """Reads the config; `new_decoder_architecture` has `num_kv_heads`, others one or as many as queries."""
    keys = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
    keys = {ours: theirs for ours, theirs in keys.items() if not fields.has(ours)}
    keys |= {"rms_norm_eps": "layer_norm_epsilon", "hidden_act": "activation"}
    if fields.has("ffn_hidden_size"):
        keys["intermediate_size"] = "ffn_hidden_size"
    renamed = fields.renamed(keys).defaulting("max_position_embeddings", TRAINED_POSITIONS)
    grouped = fields.flag("new_decoder_architecture")
    config = classic.configure(_with_kv_heads(renamed, grouped), {}, "gelu")
    bias = fields.flag("bias")
    config = replace(config, qkv_bias=bias, out_bias=bias, mlp_bias=bias)
    return FalconConfig(
        **config.values(),
        parallel=grouped or fields.flag("parallel_attn", default=True),
        norms=fields.integer("num_ln_in_parallel_attn", 2, default=2) if grouped else 1,
        alibi=fields.flag("alibi"),
    )


def weights(config: FalconConfig) -> WeightMap:
    """Maps the queries of each key/value head, its key and its value, which are neighbours in one matrix."""
    return WeightMap(
        "transformer.", parts=heads_by_group("query_key_value", fused("query_key_value"), config.heads)
    )


def _with_kv_heads(fields: Fields, grouped: bool) -> Fields:
    heads = fields.integer("num_attention_heads", MAX_HEADS)
    if grouped:
        return fields.replace("num_key_value_heads", fields.integer("num_kv_heads", MAX_HEADS, default=heads))
    return fields.replace("num_key_value_heads", 1 if fields.flag("multi_query", default=True) else heads)


def build(b: GraphBuilder, config: FalconConfig) -> None:
    block = classic.parallel if config.parallel else classic.sequential
    attend = _alibi if config.alibi else classic.rotary
    names = classic.fused_names("transformer.h.{}", "self_attention")
    if config.parallel:
        norms = ("ln_attn", "ln_mlp") if config.norms == 2 else ("input_layernorm",)
        names = replace(names, norms=norms)
    x = b.embed("transformer.word_embeddings.weight")
    classic.decoder(b, x, names, attend, "transformer.ln_f", block)


def _alibi(b: GraphBuilder, qkv: Projected) -> Value:
    """Appends attention whose ALiBi bias is divided by the root of the head's size; slopes are bf16."""
    heads = b.config.heads
    slopes = np.array(alibi_slopes(heads.heads), ml_dtypes.bfloat16).astype(np.float32)
    return b.attention(*qkv, alibi=tuple((slopes * np.float32(heads.head_dim**-0.5)).tolist()))
