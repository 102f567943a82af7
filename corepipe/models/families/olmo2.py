"""OLMo 2: norms after the blocks instead of before them, and over all of the queries and of the keys."""

from __future__ import annotations

from corepipe.models.config import ModelConfig
from corepipe.models.families import llama
from corepipe.models.families.blocks import clipped, gated_mlp, output, project
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.values import Value


def configure(fields: Fields) -> ModelConfig:
    return llama.configure(fields.defaulting("rms_norm_eps", 1e-5))


def build(config: ModelConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """Builds the forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed()
    for layer in b.layers():
        block = f"model.layers.{layer}"
        attended, x = b.only_wanted(normed_attention(b, x), x)
        attended = output(b, attended, f"{block}.self_attn.o_proj")
        x = b.add(x, b.norm(attended, f"{block}.post_attention_layernorm"))
        fed = gated_mlp(b, x, f"{block}.mlp")
        x = b.add(x, b.norm(fed, f"{block}.post_feedforward_layernorm"))
    b.head(b.norm(x, "model.norm"))
    return b.finish(name, fmt, max_positions)


def normed_attention(b: GraphBuilder, x: Value) -> Value:
    """Appends rotary attention with one norm over the queries of all heads, and one over the keys."""
    prefix = f"model.layers.{b.layer}.self_attn"
    q, k, v = project(b, x, prefix)
    q, k = b.norm(q, f"{prefix}.q_norm"), b.norm(k, f"{prefix}.k_norm")
    q, k, v = clipped(b, q, k, v)
    return b.attention(b.rope(q), b.rope(k), v)
