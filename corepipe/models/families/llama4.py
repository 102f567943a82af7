"""Llama 4, the text decoder: one routed and one shared expert a token, in every layer or every other one.

Three layers of four attend to chunks of `attention_chunk_size` positions; here they have a window as long.
"""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import MAX_FFN, MAX_LAYERS, MAX_POSITIONS, Fields, common, without_rope
from corepipe.models.families import moe
from corepipe.models.families.blocks import gated_mlp, output, project
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.moe import MoeConfig
from corepipe.neuron.graph import Format, Graph, Value

GLOBAL_EVERY = 4
"""Every so many layers, one sees the whole context and knows no positions."""


def configure(fields: Fields) -> MoeConfig:
    """`intermediate_size` is an expert's, `intermediate_size_mlp` that of layers without experts."""
    text = fields.section("text_config")
    if text is not None:
        fields = text.replace("model_type", fields.text("model_type"))
    width = moe.expert_width(fields, "intermediate_size")
    dense = fields.integer("intermediate_size_mlp", MAX_FFN)
    config = common(without_rope(fields).replace("intermediate_size", dense))
    chunk = fields.integer("attention_chunk_size", MAX_POSITIONS, default=8192)
    windows = tuple(chunk if (n + 1) % GLOBAL_EVERY else None for n in range(config.num_layers))
    step = fields.integer("interleave_moe_layer_step", MAX_LAYERS, default=1)
    return MoeConfig(
        **replace(config, windows=windows).values(),
        **moe.expert_counts(fields, "num_local_experts", "num_experts_per_tok"),
        expert_ffn=width,
        shared_ffn=width,
        sparse=tuple((n + 1) % step == 0 for n in range(config.num_layers)),
    )


def build(config: MoeConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """The forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed()
    for layer in b.layers():
        block = f"model.layers.{layer}"
        attended, x = b.only_wanted(_attention(b, b.norm(x, f"{block}.input_layernorm")), x)
        x = b.add(x, output(b, attended, f"{block}.self_attn.o_proj"))
        x = b.add(x, _feed_forward(b, b.norm(x, f"{block}.post_attention_layernorm"), config))
    b.head(b.norm(x, "model.norm"))
    return b.finish(name, fmt, max_positions)


def _attention(b: GraphBuilder, x: Value) -> Value:
    q, k, v = project(b, x, f"model.layers.{b.layer}.self_attn")
    if b.config.windows[b.layer] is None:
        return b.attention(q, k, v)
    return b.attention(b.rope(q), b.rope(k), v)


def _feed_forward(b: GraphBuilder, x: Value, config: MoeConfig) -> Value:
    prefix = f"model.layers.{b.layer}.feed_forward"
    if not config.sparse[b.layer]:
        return gated_mlp(b, x, prefix)
    routed = moe.experts(b, x, prefix, config, "router")
    return b.add(routed, moe.shared(b, x, f"{prefix}.shared_expert", config))
