"""OLMo: Llama whose LayerNorms have neither gain nor bias."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import Fields, ModelConfig, Norm
from corepipe.models.families import llama
from corepipe.models.families.llama import build

__all__ = ["build", "configure"]


def configure(fields: Fields) -> ModelConfig:
    fields.refuse("clip_qkv")
    return replace(llama.configure(fields), norm=Norm.LAYER_PLAIN, eps=1e-5)
