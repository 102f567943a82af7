"""Granite 3: Llama with constant factors of embedding, attention, residuals and logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corepipe.models.config import ModelConfig
from corepipe.models.families import llama
from corepipe.models.families.blocks import output, project
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.values import Value

MOST = 1e6
"""The upper bound of the constants."""


@dataclass(frozen=True, slots=True)
class GraniteConfig(ModelConfig):
    """The config with its constants: three factors, and the divisor of the logits."""

    embedding_factor: float = 1.0
    attention_factor: float = 1.0
    residual_factor: float = 1.0
    logits_divisor: float = 1.0


def configure(fields: Fields) -> GraniteConfig:
    return GraniteConfig(**llama.configure(fields).values(), **constants(fields))


def constants(fields: Fields) -> dict[str, Any]:
    """Reads the constants, by GraniteConfig's names."""
    return {
        "embedding_factor": fields.number("embedding_multiplier", 0.0, MOST, 1.0),
        "attention_factor": fields.number("attention_multiplier", 0.0, MOST, 1.0),
        "residual_factor": fields.number("residual_multiplier", 0.0, MOST, 1.0),
        "logits_divisor": fields.number("logits_scaling", 1 / MOST, MOST, 1.0),
    }


def build(
    config: GraniteConfig,
    fmt: Format,
    max_positions: int,
    name: str,
    feed_forward: llama.FeedForward = llama.dense,
) -> Graph:
    """Builds the forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.scale(b.embed(), config.embedding_factor)
    for layer in b.layers():
        block = f"model.layers.{layer}"
        attended = attention(b, b.norm(x, f"{block}.input_layernorm"), config.attention_factor)
        attended, x = b.only_wanted(attended, x)
        attended = output(b, attended, f"{block}.self_attn.o_proj")
        x = b.add(x, b.scale(attended, config.residual_factor))
        fed = feed_forward(b, b.norm(x, f"{block}.post_attention_layernorm"))
        x = b.add(x, b.scale(fed, config.residual_factor))
    b.scale(b.head(b.norm(x, "model.norm")), 1 / config.logits_divisor)
    return b.finish(name, fmt, max_positions)


def attention(b: GraphBuilder, x: Value, scale: float) -> Value:
    """Appends attention whose scores have this factor, before its output projection."""
    q, k, v = project(b, x, f"model.layers.{b.layer}.self_attn")
    return b.attention(b.rope(q), b.rope(k), v, scale=scale)
