"""DBRX: LayerNorm without bias, grouped queries, and a mixture of experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import Norm, common, qkv_clip
from corepipe.models.expert_weights import below
from corepipe.models.families import moe
from corepipe.models.families.blocks import clipped, fused, output, project
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.moe import MoeConfig
from corepipe.models.fields import MAX_HEADS, Fields
from corepipe.models.weight_map import WeightMap, heads_in_turn
from corepipe.neuron.ops import Scoring
from corepipe.neuron.values import Value

EMBEDDING = "transformer.wte.weight"
KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
}


def configure(fields: Fields) -> MoeConfig:
    """Reads key/value heads, clipping and rotary base from `attn_config`, experts from `ffn_config`."""
    attention, ffn = (_section(fields, key) for key in ("attn_config", "ffn_config"))
    width = moe.expert_width(ffn, "ffn_hidden_size")
    renamed = fields.renamed(KEYS).replace("intermediate_size", width)
    renamed = renamed.replace("num_key_value_heads", attention.integer("kv_n_heads", MAX_HEADS))
    if attention.has("rope_theta"):
        renamed = renamed.replace("rope_theta", attention.values["rope_theta"])
    config = replace(common(renamed), norm=Norm.LAYER_NO_BIAS, eps=1e-5, qkv_clip=qkv_clip(attention))
    act = ffn.section("ffn_act_fn")
    if act is not None:
        act.require("name", ("silu",), "silu")
    return MoeConfig(
        **config.values(),
        **moe.expert_counts(ffn, "moe_num_experts", "moe_top_k"),
        expert_ffn=width,
        sparse=(True,) * config.num_layers,
        scoring=_scoring(ffn),
    )


def _section(fields: Fields, key: str) -> Fields:
    section = fields.section(key)
    if section is None:
        raise fields.error(key, "is missing")
    return section


def _scoring(ffn: Fields) -> Scoring:
    """Returns how experts' weights are normalised: by their sum, or not at all."""
    key = "moe_normalize_expert_weights"
    if key in ffn.values and not ffn.has(key):
        return Scoring.OF_ALL
    if ffn.number(key, 0.0, 1e6, 1.0) != 1.0:
        raise ffn.error(key, "other than 1 is not supported")
    return Scoring.OF_CHOSEN


def weights(config: MoeConfig) -> WeightMap:
    """Maps queries, keys and values, which are one matrix, and w1, v1 and w2; the last is [in, out]."""
    parts = heads_in_turn("Wqkv", fused("Wqkv"), config.heads)
    names = [f"experts.mlp.{name}" for name in ("w1", "v1", "w2")]
    return WeightMap(parts=parts, experts=below(config.experts, config.expert_ffn, config.hidden_size, names))


def build(b: GraphBuilder, config: MoeConfig) -> None:
    x = b.embed(EMBEDDING)
    for layer in b.layers():
        block = f"transformer.blocks.{layer}"
        norms = f"{block}.norm_attn_norm"
        attended, x = b.only_wanted(_attention(b, b.norm(x, f"{norms}.norm_1"), f"{norms}.attn"), x)
        x = b.add(x, output(b, attended, f"{norms}.attn.out_proj"))
        x = b.add(x, moe.experts(b, b.norm(x, f"{norms}.norm_2"), f"{block}.ffn", config, "router.layer"))
    b.head(b.norm(x, "transformer.norm_f"))


def _attention(b: GraphBuilder, x: Value, prefix: str) -> Value:
    q, k, v = clipped(b, *project(b, x, prefix, fused("Wqkv")))
    return b.attention(b.rope(q), b.rope(k), v)
