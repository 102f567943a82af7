"""Phi-1, 1.5 and 2: parallel blocks after one norm, rotary positions on part of each head, biases."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.blocks import Projected
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.neuron.values import Value

NAMES = classic.Names(
    "model.layers.{}",
    norms=("input_layernorm",),
    attention="self_attn",
    out="self_attn.dense",
    up="mlp.fc1",
    down="mlp.fc2",
)


def configure(fields: Fields) -> ModelConfig:
    """Reads the config; `partial_rotary_factor` of a head is rotated, `qk_layernorm` norms q and k."""
    keys = {"rms_norm_eps": "layer_norm_eps"}
    config = classic.configure(fields, keys, "gelu_new", tied=False, rotary_share=0.5)
    return replace(config, head_norms=fields.flag("qk_layernorm"))


def build(b: GraphBuilder, _config: ModelConfig) -> None:
    classic.decoder(b, b.embed(), NAMES, _attention, "model.final_layernorm", classic.parallel, bias=True)


def _attention(b: GraphBuilder, qkv: Projected) -> Value:
    q, k, v = qkv
    if b.config.head_norms:
        prefix = f"model.layers.{b.layer}.self_attn"
        q = b.head_layer_norm(q, f"{prefix}.q_layernorm", bias=True)
        k = b.head_layer_norm(k, f"{prefix}.k_layernorm", bias=True)
    return classic.rotary(b, (q, k, v))
