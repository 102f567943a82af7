"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and optionally a window in the upper layers."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig, common, sliding_windows
from corepipe.models.families.llama import build
from corepipe.models.fields import MAX_LAYERS, MAX_POSITIONS, Fields

__all__ = ["build", "configure", "upper_windows"]


def configure(fields: Fields) -> ModelConfig:
    config = common(fields)
    return replace(config, qkv_bias=True, windows=upper_windows(fields, config))


def upper_windows(fields: Fields, config: ModelConfig) -> tuple[int | None, ...]:
    """Returns the windows: `use_sliding_window` turns them on from layer `max_window_layers` upwards."""
    if not fields.flag("use_sliding_window"):
        return config.windows
    window = fields.integer("sliding_window", MAX_POSITIONS, default=4096)
    first = fields.integer("max_window_layers", MAX_LAYERS, default=28, least=0)
    return sliding_windows(fields, window, first, config.num_layers)
