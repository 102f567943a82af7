"""DBRX: LayerNorm without bias, grouped queries, and a mixture of experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import MAX_HEADS, Fields, ModelConfig, Norm, common, without_rope
from corepipe.models.families import moe
from corepipe.models.families.blocks import fused, output, project
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.moe import MoeConfig
from corepipe.neuron.graph import Format, Graph, Value

EMBEDDING = "transformer.wte.weight"
KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
}


def configure(fields: Fields) -> MoeConfig:
    """Key/value heads are in `attn_config`, the experts in `ffn_config`."""
    attention, ffn = (_section(fields, key) for key in ("attn_config", "ffn_config"))
    width = moe.expert_width(ffn, "ffn_hidden_size")
    renamed = fields.renamed(KEYS).replace("intermediate_size", width)
    renamed = renamed.replace("num_key_value_heads", attention.integer("kv_n_heads", MAX_HEADS))
    config = _layer_normed(renamed)
    return MoeConfig(
        **config.values(),
        **moe.expert_counts(ffn, "moe_num_experts", "moe_top_k"),
        expert_ffn=width,
        sparse=(True,) * config.num_layers,
    )


def _section(fields: Fields, key: str) -> Fields:
    section = fields.section(key)
    if section is None:
        raise fields.error(key, "is missing")
    return section


def _layer_normed(fields: Fields) -> ModelConfig:
    return replace(common(without_rope(fields)), norm=Norm.LAYER_NO_BIAS, eps=1e-5)


def build(config: MoeConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """The forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed(EMBEDDING)
    for layer in b.layers():
        block = f"transformer.blocks.{layer}"
        norms = f"{block}.norm_attn_norm"
        attended, x = b.only_wanted(_attention(b, b.norm(x, f"{norms}.norm_1"), f"{norms}.attn"), x)
        x = b.add(x, output(b, attended, f"{norms}.attn.out_proj"))
        x = b.add(x, moe.experts(b, b.norm(x, f"{norms}.norm_2"), f"{block}.ffn", config, "router.layer"))
    b.head(b.norm(x, "transformer.norm_f"))
    return b.finish(name, fmt, max_positions, tied=("lm_head.weight", EMBEDDING))


def _attention(b: GraphBuilder, x: Value, prefix: str) -> Value:
    q, k, v = project(b, x, prefix, fused("Wqkv"))
    return b.attention(b.rope(q), b.rope(k), v)
