"""Phi-3, Phi-3.5 and Phi-4: Llama whose fused matrices appear here as their parts, under Llama's names."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from corepipe.models.config import MAX_POSITIONS, Fields, ModelConfig, common
from corepipe.models.families import llama
from corepipe.models.rope import RopeConfig
from corepipe.models.weight_map import Part, WeightMap, heads_in_turn, in_turn
from corepipe.neuron import elementary
from corepipe.neuron.graph import Format, Graph

LONG_ROPE = ("longrope", "su", "yarn")
"""What configs have called it over the years."""


@dataclass(frozen=True, slots=True)
class Phi3Config(ModelConfig):
    """`long_rope` takes the place of `rope` where more positions than it was trained with are asked for."""

    long_rope: RopeConfig | None = None


def configure(fields: Fields) -> Phi3Config:
    """`sliding_window` holds for all layers; `partial_rotary_factor` of each head is rotated."""
    key = "rope_scaling" if fields.has("rope_scaling") else "rope_parameters"
    section = fields.section(key)
    scaled = section is not None and section.text("rope_type", section.text("type", "default")) in LONG_ROPE
    plain = fields.replace(key, {**section.values, "rope_type": "default"}) if section and scaled else fields
    config = common(plain.defaulting("rms_norm_eps", 1e-5), rotary_share=1.0)
    window = fields.integer("sliding_window", MAX_POSITIONS) if fields.has("sliding_window") else None
    config = replace(config, windows=(window,) * config.num_layers)
    if section is None or not scaled:
        return Phi3Config(**config.values())
    short, long = (_scaled(fields, section, config, f"{name}_factor") for name in ("short", "long"))
    return Phi3Config(**replace(config, rope=short).values(), long_rope=long)


def _scaled(fields: Fields, section: Fields, config: ModelConfig, key: str) -> RopeConfig:
    """The frequencies over the factors of `key`, for contexts longer than in training (LongRoPE, 2024)."""
    source = fields if fields.has("original_max_position_embeddings") else section
    trained = source.integer("original_max_position_embeddings", MAX_POSITIONS, default=4096, least=2)
    factors = section.numbers(key, (config.rotary_dim or config.heads.head_dim) // 2, 1e-6, 1e6)
    stretch = section.number("factor", 1e-3, 1e6, config.max_positions / trained)
    grown = math.sqrt(1 + elementary.log(stretch) / elementary.log(trained)) if stretch > 1 else 1.0
    attention = section.number("attention_factor", 0.0, 1e6, grown)
    return RopeConfig(
        "longrope", config.rope.theta, stretch, trained, attention_factor=attention, freq_factors=factors
    )


def weights(config: ModelConfig) -> WeightMap:
    """Queries, keys and values are one matrix, gate and up another."""
    heads = heads_in_turn("qkv_proj", ("q_proj", "k_proj", "v_proj"), config.heads)
    return WeightMap(parts=heads | gate_up(config))


def gate_up(config: ModelConfig) -> dict[str, Part]:
    """Both matrices into the feed-forward's middle, one after the other."""
    return in_turn("gate_up_proj", {"gate_proj": config.ffn_size, "up_proj": config.ffn_size})


def build(config: Phi3Config, fmt: Format, max_positions: int, name: str) -> Graph:
    """The forward pass: token ids to logits [rows wanted, vocab].

    Which factors scale the frequencies depends on how long a context is asked for, not on how long a
    sequence is: a token's keys must not change with what comes after it.
    """
    if config.long_rope is not None and max_positions > config.rope.original_max_positions:
        config = replace(config, rope=config.long_rope)
    return llama.build(config, fmt, max_positions, name)
