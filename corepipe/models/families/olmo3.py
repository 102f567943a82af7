"""OLMo 3: OLMo 2 with a window in three layers of four; only the fourth's rotary positions are scaled."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig, without_rope
from corepipe.models.families import olmo2
from corepipe.models.families.olmo2 import build
from corepipe.models.families.windows import alternating, layer_ropes
from corepipe.models.fields import Fields

__all__ = ["build", "configure"]


def configure(fields: Fields) -> ModelConfig:
    config = olmo2.configure(without_rope(fields))
    windows = alternating(fields, config.num_layers, window=4096, pattern=4)
    ropes = layer_ropes(fields.defaulting("rope_theta", 500000.0), config, windows)
    return replace(config, windows=windows, layer_ropes=ropes)
