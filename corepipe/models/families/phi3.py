"""Phi-3, Phi-3.5 and Phi-4: Llama whose fused matrices appear here as their parts, under Llama's names."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import MAX_POSITIONS, Fields, ModelConfig, common, rotary_dim, without_rope
from corepipe.models.families.llama import build

__all__ = ["build", "configure"]


def configure(fields: Fields) -> ModelConfig:
    """`sliding_window` holds for all layers; `partial_rotary_factor` of each head is rotated."""
    config = common(without_rope(fields))
    window = fields.integer("sliding_window", MAX_POSITIONS) if fields.has("sliding_window") else None
    share = rotary_dim(fields, 1.0)
    return replace(config, rotary_dim=share, windows=(window,) * config.num_layers)
