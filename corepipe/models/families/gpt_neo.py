"""GPT-Neo: GPT-2 with separate projections without biases, and a window in every other layer."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.blocks import Projected
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import MAX_LAYERS, MAX_POSITIONS, Fields
from corepipe.models.weight_map import WeightMap
from corepipe.neuron.values import Value

KEYS = {
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}
NAMES = classic.Names(
    "transformer.h.{}",
    norms=("ln_1", "ln_2"),
    attention="attn.attention",
    out="attn.attention.out_proj",
    up="mlp.c_fc",
    down="mlp.c_proj",
)


def configure(fields: Fields) -> ModelConfig:
    """Reads the config; `attention_types` says which layers have the window (default: every other)."""
    config = classic.configure(fields, KEYS, "gelu_new")
    window = fields.integer("window_size", MAX_POSITIONS, default=256)
    kinds = _kinds(fields) if fields.has("attention_types") else ["global", "local"] * config.num_layers
    if len(kinds) < config.num_layers:
        raise fields.error("attention_types", f"names {len(kinds)} layers of {config.num_layers}")
    windows = tuple(window if kind == "local" else None for kind in kinds[: config.num_layers])
    return replace(config, qkv_bias=False, windows=windows)


def weights(_config: ModelConfig) -> WeightMap:
    return WeightMap("transformer.")


def _kinds(fields: Fields) -> list[str]:
    """Returns the kind of each layer, from [[[kinds in turn], repetitions], ...]."""
    listed: list[str] = []
    for entry in fields.items("attention_types"):
        match entry:
            case [[*kinds], int(times)] if 0 < times <= MAX_LAYERS and {*kinds} <= {"global", "local"}:
                listed += kinds * times
            case _:
                raise fields.error("attention_types", "must be a list of [[global or local, ...], how often]")
    return listed


def _attend(b: GraphBuilder, qkv: Projected) -> Value:
    """Appends attention whose scores are not divided by the root of the head's size."""
    return b.attention(*qkv, scale=1.0)


def build(b: GraphBuilder, config: ModelConfig) -> None:
    x = b.add_embedding(b.embed("transformer.wte.weight"), "transformer.wpe.weight", config.max_positions)
    classic.decoder(b, x, NAMES, _attend, "transformer.ln_f")
