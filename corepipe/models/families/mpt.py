"""MPT: ALiBi instead of positions, LayerNorm without bias, no biases at all, a tied head."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig, Norm, qkv_clip
from corepipe.models.families import classic
from corepipe.models.families.blocks import Projected, clipped, fused
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import MAX_FFN, MAX_HIDDEN, Fields
from corepipe.models.weight_map import WeightMap, heads_in_turn
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.values import Value

EMBEDDING = "transformer.wte.weight"
KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "layer_norm_epsilon",
}


def configure(fields: Fields) -> ModelConfig:
    """Reads the config; key/value heads are in `attn_config`, `expansion_ratio` widens the feed-forward."""
    attention = fields.section("attn_config") or Fields(fields.path, {})
    attention.refuse("qk_ln", "prefix_lm", "softmax_scale")
    if not attention.flag("alibi", default=True) or attention.number("alibi_bias_max", 0, 1e6, 8) != 8:
        raise attention.error("alibi", "must be on, and alibi_bias_max 8: other positions are not supported")
    fields.refuse("logit_scale")
    if attention.has("kv_n_heads"):
        fields = fields.replace("num_key_value_heads", attention.integer("kv_n_heads", MAX_HIDDEN))
    ratio = fields.integer("expansion_ratio", MAX_FFN, default=4)
    width = min(MAX_FFN, ratio * fields.integer("d_model", MAX_HIDDEN))
    config = classic.configure(fields.replace("intermediate_size", width), KEYS, "gelu")
    config = replace(config, qkv_bias=False, out_bias=False, mlp_bias=False, qkv_clip=qkv_clip(attention))
    return replace(config, norm=Norm.LAYER_NO_BIAS)


def weights(config: ModelConfig) -> WeightMap:
    return WeightMap("transformer.", parts=heads_in_turn("Wqkv", fused("Wqkv"), config.heads))


def _names(layer: int) -> classic.Names:
    block = f"transformer.blocks.{layer}"
    return classic.Names(
        norms=(f"{block}.norm_1", f"{block}.norm_2"),
        attention=f"{block}.attn",
        qkv=fused("Wqkv"),
        out=f"{block}.attn.out_proj",
        up=f"{block}.ffn.up_proj",
        down=f"{block}.ffn.down_proj",
    )


def build(config: ModelConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """Builds the forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed(EMBEDDING)
    for layer in b.layers():
        x = classic.sequential(b, x, _names(layer), _attend)
    b.head(b.norm(x, "transformer.norm_f"))
    return b.finish(name, fmt, max_positions, tied=("lm_head.weight", EMBEDDING))


def _attend(b: GraphBuilder, projected: Projected) -> Value:
    return classic.alibi(b, clipped(b, *projected))
