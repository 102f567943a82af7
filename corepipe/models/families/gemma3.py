"""Gemma 3: Gemma 2 with norms over each head instead of caps, and a window in five layers of six.

Of the models that see images, the text decoder alone.
"""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS, Fields, sliding_windows
from corepipe.models.families.gemma import gemma_common
from corepipe.models.families.gemma2 import Gemma2Config, build

__all__ = ["build", "configure"]

TEXT_DEFAULTS: dict[str, object] = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
}
"""What configs of the models that see images leave out, from transformers' Gemma3TextConfig."""


def configure(fields: Fields) -> Gemma2Config:
    """Every sixth layer sees the whole context unless `layer_types` says which do."""
    text = fields.section("text_config")
    if text is not None:
        fields = text.replace("model_type", fields.text("model_type"))
        for key, value in TEXT_DEFAULTS.items():
            fields = fields.defaulting(key, value)
    config = gemma_common(fields)
    window = fields.integer("sliding_window", MAX_POSITIONS, default=1024)
    pattern = fields.integer("sliding_window_pattern", MAX_LAYERS, default=6)
    windows = tuple(window if (layer + 1) % pattern else None for layer in range(config.num_layers))
    if fields.has("layer_types"):
        windows = sliding_windows(fields, window, 0, config.num_layers)
    scale = fields.integer("query_pre_attn_scalar", MAX_HIDDEN, default=256)
    return Gemma2Config(**replace(config, windows=windows, head_norms=True).values(), query_scale=scale)
