"""OLMo: Llama whose LayerNorms have neither gain nor bias."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig, Norm, qkv_clip
from corepipe.models.families import llama
from corepipe.models.families.llama import build
from corepipe.models.fields import Fields

__all__ = ["build", "configure"]


def configure(fields: Fields) -> ModelConfig:
    config = replace(llama.configure(fields), qkv_clip=qkv_clip(fields))
    return replace(config, norm=Norm.LAYER_PLAIN, eps=1e-5)
