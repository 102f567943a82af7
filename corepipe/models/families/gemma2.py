"""Gemma 2: norms before and after each block, a window in every other layer, capped scores and logits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from corepipe.models.config import ModelConfig
from corepipe.models.families import llama
from corepipe.models.families.gemma import gemma_common, weights
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.windows import alternating
from corepipe.models.fields import MAX_HIDDEN, Fields
from corepipe.neuron.ops import Function

__all__ = ["build", "configure", "weights"]

MOST = 1e6
"""The upper bound of the caps."""
NORMS = llama.Norms(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)


@dataclass(frozen=True, slots=True)
class Gemma2Config(ModelConfig):
    """`query_scale`: scores are scaled by 1 / sqrt of it; a cap of None: no cap."""

    query_scale: int = 256
    score_cap: float | None = None
    logit_cap: float | None = None


def configure(fields: Fields) -> Gemma2Config:
    """Reads the config; every other layer has the window."""
    config = gemma_common(fields)
    windows = alternating(fields, config.num_layers, window=4096, pattern=2)
    return Gemma2Config(
        **replace(config, windows=windows).values(),
        query_scale=fields.integer("query_pre_attn_scalar", MAX_HIDDEN, default=256),
        score_cap=cap(fields, "attn_logit_softcapping", 50.0),
        logit_cap=cap(fields, "final_logit_softcapping", 30.0),
    )


def cap(fields: Fields, key: str, default: float | None) -> float | None:
    """Reads a cap: null means none; an absent key the default."""
    if not fields.has(key):
        return None if key in fields.values else default
    return fields.number(key, 1e-3, MOST)


def build(b: GraphBuilder, config: Gemma2Config) -> None:
    """Appends the forward pass, also Gemma 3's."""
    x = b.scale(b.embed(), config.hidden_size**0.5)
    attend = partial(llama.attention, scale=config.query_scale**-0.5, softcap=config.score_cap)
    logits = b.head(llama.decoder(b, x, attend=attend, norms=NORMS))
    if config.logit_cap is not None:
        capped = b.activation(b.scale(logits, 1 / config.logit_cap), Function.TANH)
        b.scale(capped, config.logit_cap)
