"""GPT-Neo: GPT-2 with separate projections without biases, and a window in every other layer."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import MAX_POSITIONS, Fields, ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.layers import GraphBuilder
from corepipe.neuron.graph import Format, Graph

EMBEDDING = "transformer.wte.weight"
KEYS = {
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}


def configure(fields: Fields) -> ModelConfig:
    """Layers take turns: the whole context, then the latest `window_size` positions."""
    config = classic.configure(fields, KEYS, "gelu_new")
    window = fields.integer("window_size", MAX_POSITIONS, default=256)
    windows = tuple(window if layer % 2 else None for layer in range(config.num_layers))
    return replace(config, qkv_bias=False, windows=windows)


def _names(layer: int) -> classic.Names:
    block = f"transformer.h.{layer}"
    return classic.Names(
        norms=(f"{block}.ln_1", f"{block}.ln_2"),
        attention=f"{block}.attn.attention",
        qkv=("q_proj", "k_proj", "v_proj"),
        out=f"{block}.attn.attention.out_proj",
        up=f"{block}.mlp.c_fc",
        down=f"{block}.mlp.c_proj",
    )


def build(config: ModelConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """The forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.add_embedding(b.embed(EMBEDDING), "transformer.wpe.weight", config.max_positions)
    for layer in b.layers():
        x = classic.sequential(b, x, _names(layer), classic.plain)
    b.head(b.norm(x, "transformer.ln_f"))
    return b.finish(name, fmt, max_positions, tied=("lm_head.weight", EMBEDDING))
