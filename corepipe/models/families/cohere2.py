"""Command R7B and Command A: Command-R with windows; every fourth layer attends to all, without positions."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.families import cohere
from corepipe.models.families.cohere import CohereConfig, build, weights
from corepipe.models.families.windows import alternating
from corepipe.models.fields import Fields

__all__ = ["build", "configure", "weights"]


def configure(fields: Fields) -> CohereConfig:
    fields.refuse("use_qk_norm")
    config = cohere.configure(fields.defaulting("rope_theta", 10000.0))
    windows = alternating(fields, config.num_layers, window=4096, pattern=4)
    ropes = tuple(config.rope if window else None for window in windows)
    return replace(config, windows=windows, layer_ropes=ropes)
