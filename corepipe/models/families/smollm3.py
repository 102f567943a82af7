"""SmolLM3: Llama where every fourth layer knows no positions."""

from __future__ import annotations

from corepipe.models.config import Fields, ModelConfig, common, without_rope
from corepipe.models.families.blocks import gated_mlp, output, project
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.llama import attention
from corepipe.neuron.graph import Format, Graph, Value

EVERY = 4
"""Every so many layers, one without rotary embedding (transformers' `no_rope_layer_interval`)."""


def configure(fields: Fields) -> ModelConfig:
    return common(without_rope(fields.defaulting("tie_word_embeddings", value=True)))


def build(config: ModelConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """The forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed()
    for layer in b.layers():
        attended = _attention(b, b.norm(x, f"model.layers.{layer}.input_layernorm"))
        attended, x = b.only_wanted(attended, x)
        x = b.add(x, output(b, attended, f"model.layers.{layer}.self_attn.o_proj"))
        normed = b.norm(x, f"model.layers.{layer}.post_attention_layernorm")
        x = b.add(x, gated_mlp(b, normed, f"model.layers.{layer}.mlp"))
    b.head(b.norm(x, "model.norm"))
    return b.finish(name, fmt, max_positions)


def _attention(b: GraphBuilder, x: Value) -> Value:
    if (b.layer + 1) % EVERY:
        return attention(b, x)
    return b.attention(*project(b, x, f"model.layers.{b.layer}.self_attn"))
