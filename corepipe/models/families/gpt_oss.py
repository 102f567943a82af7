"""gpt-oss: experts with biases, attention with sinks, and a window in every other layer."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import MAX_POSITIONS, Fields, common, sliding_windows, without_rope
from corepipe.models.families import moe
from corepipe.models.families.blocks import output, project
from corepipe.models.families.layers import GraphBuilder, by_head
from corepipe.models.families.moe import MoeConfig
from corepipe.neuron.graph import Format, Graph, Value


def configure(fields: Fields) -> MoeConfig:
    """`intermediate_size` is an expert's; even layers have the window unless `layer_types` says which do."""
    config = replace(common(without_rope(fields)), qkv_bias=True, out_bias=True)
    window = fields.integer("sliding_window", MAX_POSITIONS, default=128)
    windows = tuple(None if layer % 2 else window for layer in range(config.num_layers))
    if fields.has("layer_types"):
        windows = sliding_windows(fields, window, 0, config.num_layers)
    return MoeConfig(
        **replace(config, windows=windows).values(),
        **moe.expert_counts(fields, "num_local_experts", "num_experts_per_tok"),
        expert_ffn=config.ffn_size,
        router_bias=True,
        expert_bias=True,
        sparse=(True,) * config.num_layers,
    )


def build(config: MoeConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """The forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed()
    for layer in b.layers():
        block = f"model.layers.{layer}"
        attended, x = b.only_wanted(_attention(b, b.norm(x, f"{block}.input_layernorm")), x)
        x = b.add(x, output(b, attended, f"{block}.self_attn.o_proj"))
        normed = b.norm(x, f"{block}.post_attention_layernorm")
        x = b.add(x, moe.experts(b, normed, f"{block}.mlp", config, "router"))
    b.head(b.norm(x, "model.norm"))
    return b.finish(name, fmt, max_positions)


def _attention(b: GraphBuilder, x: Value) -> Value:
    prefix = f"model.layers.{b.layer}.self_attn"
    q, k, v = project(b, x, prefix)
    sinks = by_head(f"{prefix}.sinks", 1, b.config.heads.queries("head", unit=1))
    return b.attention(b.rope(q), b.rope(k), v, sinks=sinks)
