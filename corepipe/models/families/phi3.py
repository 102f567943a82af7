"""Phi-3, Phi-3.5 and Phi-4: Llama with fused matrices, which the graph has as parts under Llama's names."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from corepipe.models.config import ModelConfig, common
from corepipe.models.families import llama
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import MAX_POSITIONS, Fields
from corepipe.models.rope import RopeConfig
from corepipe.models.rope_fields import NEW, OLD, OUTSIDE, TRAINED, either, rope_section, rope_type
from corepipe.models.weight_map import TensorRows, WeightMap, heads_in_turn, in_turn
from corepipe.neuron.numerics import elementary

LONG_ROPE = ("longrope", "yarn")
"""Names of the type that configs have used over the years."""


@dataclass(frozen=True, slots=True)
class Phi3Config(ModelConfig):
    """`long_rope` replaces `rope` where more positions are requested than the model was trained with."""

    long_rope: RopeConfig | None = None


def configure(fields: Fields) -> Phi3Config:
    """Reads the config; `sliding_window` is for all layers; `partial_rotary_factor` of a head is rotated."""
    plain, section = without_long_rope(fields)
    config = common(plain.defaulting("rms_norm_eps", 1e-5), rotary_share=1.0)
    window = fields.integer("sliding_window", MAX_POSITIONS) if fields.has("sliding_window") else None
    config = replace(config, windows=(window,) * config.num_layers)
    if section is None:
        return Phi3Config(**config.values())
    short, long = long_ropes(fields, section, config)
    return Phi3Config(**replace(config, rope=short).values(), long_rope=long)


def without_long_rope(fields: Fields) -> tuple[Fields, Fields | None]:
    """Returns the config with plain frequencies, and its scaling for long contexts, if any."""
    section = rope_section(fields)
    if rope_type(section) not in LONG_ROPE:
        return fields, None
    kept = {key: section.values[key] for key in OUTSIDE if section.has(key)}
    return fields.without(OLD).replace(NEW, kept), section


def long_ropes(fields: Fields, section: Fields, config: ModelConfig) -> tuple[RopeConfig, RopeConfig]:
    """Returns the frequencies of contexts as long as in training, and of longer ones (LongRoPE, 2024)."""
    return _scaled(fields, section, config, "short"), _scaled(fields, section, config, "long")


def _scaled(fields: Fields, section: Fields, config: ModelConfig, length: str) -> RopeConfig:
    """Returns the frequencies over the factors for that length."""
    trained = either(fields, section, TRAINED).integer(TRAINED, MAX_POSITIONS, default=4096, least=2)
    factors = section.numbers(
        f"{length}_factor", (config.rotary_dim or config.heads.head_dim) // 2, 1e-6, 1e6
    )
    stretch = section.number("factor", 1e-3, 1e6, config.max_positions / trained)
    grown = math.sqrt(1 + elementary.log(stretch) / elementary.log(trained)) if stretch > 1 else 1.0
    attention = section.number("attention_factor", 0.0, 1e6, grown)
    attention = section.number(f"{length}_mscale", 0.0, 1e6, attention)  # the mixture's key
    return RopeConfig(
        "longrope", config.rope.theta, stretch, trained, attention_factor=attention, freq_factors=factors
    )


def weights(config: ModelConfig) -> WeightMap:
    """Maps queries, keys and values, which are one matrix, and gate and up, another."""
    heads = heads_in_turn("qkv_proj", ("q_proj", "k_proj", "v_proj"), config.heads)
    return WeightMap(parts=heads | gate_up(config))


def gate_up(config: ModelConfig) -> dict[str, TensorRows]:
    """Maps both matrices into the feed-forward's middle, one after the other."""
    return in_turn("gate_up_proj", {"gate_proj": config.ffn_size, "up_proj": config.ffn_size})


def build(b: GraphBuilder, config: Phi3Config) -> None:
    set_rope(b, config.long_rope)
    llama.build(b, config)


def set_rope(b: GraphBuilder, long: RopeConfig | None) -> None:
    """Gives the builder the frequencies of its context, `long` where that is longer than in training.

    They depend on the requested context, not on the length of a sequence: a token's keys must not change with
    what comes after it.
    """
    if long is not None and b.max_positions > b.config.rope.original_max_positions:
        b.config = replace(b.config, rope=long)
