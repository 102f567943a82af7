"""Mistral: Llama with a sliding window in every layer."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig, common
from corepipe.models.families.llama import build
from corepipe.models.fields import MAX_POSITIONS, Fields

__all__ = ["build", "configure"]


def configure(fields: Fields) -> ModelConfig:
    """Reads the config; `sliding_window: null` means none; an absent key means 4096, as in transformers."""
    config = common(fields)
    if "sliding_window" in fields.values and not fields.has("sliding_window"):
        return config
    window = fields.integer("sliding_window", MAX_POSITIONS, default=4096)
    return replace(config, windows=(window,) * config.num_layers)
