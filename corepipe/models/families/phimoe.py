"""Phi-3.5-MoE: Mixtral with LayerNorm, biases in attention and on the head, and SparseMixer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corepipe.models.config import Norm
from corepipe.models.families import llama, mixtral, moe
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.mixtral import weights
from corepipe.models.families.moe import MoeConfig
from corepipe.models.families.phi3 import long_ropes, set_rope, without_long_rope
from corepipe.models.fields import Fields
from corepipe.models.rope import RopeConfig
from corepipe.neuron.ops import Scoring

__all__ = ["build", "configure", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhimoeConfig(MoeConfig):
    """`long_rope` as in Phi-3's config."""

    head_bias: bool
    long_rope: RopeConfig | None = None


def configure(fields: Fields) -> PhimoeConfig:
    """Reads the config: `attention_bias` is for all four attention linears; `router_jitter_noise` is half of
    the distance within which scores share an expert's weight; a token takes two experts."""
    plain, section = without_long_rope(fields.defaulting("rope_theta", 1e6))
    config = mixtral.described(plain.defaulting("num_local_experts", 16).defaulting("num_experts_per_tok", 2))
    if config.top_k != TAKEN:
        raise fields.error(
            "num_experts_per_tok", f"({config.top_k}) must be {TAKEN}: SparseMixer weighs two experts"
        )
    short, long = (config.rope, None) if section is None else long_ropes(fields, section, config)
    bias, noise = fields.flag("attention_bias"), fields.number("router_jitter_noise", 0.0, 1.0, 0.01)
    values = replace(config, rope=short, qkv_bias=bias, out_bias=bias, norm=Norm.LAYER).values()
    weighed = {"scoring": Scoring.OF_NEAR, "nearness": 2 * noise}
    return PhimoeConfig(**{**values, **weighed}, head_bias=fields.flag("lm_head_bias"), long_rope=long)


TAKEN = 2
"""Experts of a token (transformers, sparsemixer)."""


def build(b: GraphBuilder, config: PhimoeConfig) -> None:
    """Appends the forward pass; long contexts as Phi-3's."""
    set_rope(b, config.long_rope)
    b.head(llama.decoder(b, b.embed(), moe.in_layers(config, "block_sparse_moe")), bias=config.head_bias)
