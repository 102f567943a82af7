"""MPT: ALiBi instead of positions, LayerNorm without bias, no biases at all, a tied head."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig, Norm, qkv_clip
from corepipe.models.families import classic
from corepipe.models.families.blocks import Projected, clipped, fused
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import MAX_FFN, MAX_HIDDEN, Fields
from corepipe.models.weight_map import WeightMap, heads_in_turn
from corepipe.neuron.values import Value

KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "layer_norm_epsilon",
}
NAMES = classic.Names(
    "transformer.blocks.{}",
    norms=("norm_1", "norm_2"),
    attention="attn",
    qkv=fused("Wqkv"),
    out="attn.out_proj",
    up="ffn.up_proj",
    down="ffn.down_proj",
)


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


def build(b: GraphBuilder, _config: ModelConfig) -> None:
    classic.decoder(b, b.embed("transformer.wte.weight"), NAMES, _attend, "transformer.norm_f")


def _attend(b: GraphBuilder, projected: Projected) -> Value:
    return classic.alibi(b, clipped(b, *projected))
