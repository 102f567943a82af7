"""Qwen3: Llama with a norm over each query and key head, and heads of 128 unless the config says else."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig, common
from corepipe.models.families.llama import build
from corepipe.models.families.qwen2 import upper_windows
from corepipe.models.fields import Fields

__all__ = ["build", "configure", "described"]


def configure(fields: Fields) -> ModelConfig:
    return described(fields.defaulting("head_dim", 128))


def described(fields: Fields) -> ModelConfig:
    """Reads the config; `attention_bias` puts a bias on all four attention linears."""
    config = common(fields)
    bias = fields.flag("attention_bias")
    windows = upper_windows(fields, config)
    return replace(config, head_norms=True, qkv_bias=bias, out_bias=bias, windows=windows)
