"""Granite 3: Llama with constant factors of embedding, attention, residuals and logits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from corepipe.models.config import ModelConfig
from corepipe.models.families import llama
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields

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
    b: GraphBuilder,
    config: GraniteConfig,
    feed_forward: llama.FeedForward = llama.dense,
    attend: llama.Attend | None = None,
    project: llama.Attend | None = None,
) -> None:
    """Appends the forward pass; `attend` and `project` as in `llama.decoder`."""
    x, factor = b.scale(b.embed(), config.embedding_factor), config.residual_factor
    own = attend or partial(llama.attention, scale=config.attention_factor)
    b.scale(
        b.head(llama.decoder(b, x, feed_forward, own, factor=factor, project=project)),
        1 / config.logits_divisor,
    )
