"""SmolLM3: Llama in which every fourth layer has no positions."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig, sliding_windows
from corepipe.models.families import llama
from corepipe.models.families.llama import build
from corepipe.models.families.windows import rotated
from corepipe.models.fields import MAX_POSITIONS, Fields

__all__ = ["build", "configure"]


def configure(fields: Fields) -> ModelConfig:
    """Reads the config; layers without positions: `no_rope_layers`, or each `no_rope_layer_interval`-th."""
    fields = fields.defaulting("tie_word_embeddings", value=True).defaulting("rope_theta", 2e6)
    config = llama.configure(fields)
    knows = rotated(fields, config.num_layers)
    windows = config.windows
    if fields.flag("use_sliding_window") and fields.has("sliding_window"):
        window = fields.integer("sliding_window", MAX_POSITIONS)
        windows = tuple(None if known else window for known in knows)
        if fields.has("layer_types"):
            windows = sliding_windows(fields, window, 0, config.num_layers)
    ropes = tuple(config.rope if known else None for known in knows)
    return replace(config, windows=windows, layer_ropes=ropes)
