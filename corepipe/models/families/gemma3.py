"""Gemma 3: Gemma 2 with norms over each head instead of caps, and a window in five layers of six.

Of multimodal models only the text decoder is built.
"""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import without_rope
from corepipe.models.families.gemma import gemma_common, weights
from corepipe.models.families.gemma2 import Gemma2Config, build, cap
from corepipe.models.families.windows import alternating, layer_ropes
from corepipe.models.fields import MAX_HIDDEN, Fields

__all__ = ["build", "configure", "weights"]

TEXT_DEFAULTS: dict[str, object] = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
}
"""Defaults for configs of multimodal models, from transformers' Gemma3TextConfig."""


def configure(fields: Fields) -> Gemma2Config:
    """Reads the config; every sixth layer attends to the whole context, with another rotary base."""
    text = fields.section("text_config")
    if text is not None:
        fields = text.replace("model_type", fields.text("model_type"))
        for key, value in TEXT_DEFAULTS.items():
            fields = fields.defaulting(key, value)
    config = gemma_common(without_rope(fields))
    windows = alternating(fields, config.num_layers, window=4096, pattern=6)
    ropes = layer_ropes(fields.defaulting("rope_theta", 1e6), config, windows, "rope_local_base_freq")
    config = replace(config, windows=windows, head_norms=True, layer_ropes=ropes)
    return Gemma2Config(
        **config.values(),
        query_scale=fields.integer("query_pre_attn_scalar", MAX_HIDDEN, default=256),
        score_cap=cap(fields, "attn_logit_softcapping", None),
        logit_cap=cap(fields, "final_logit_softcapping", None),
    )
