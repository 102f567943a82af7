"""Command-R: LayerNorm without bias, one norm for both blocks side by side, a tied head with a scale."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from corepipe.models.config import ModelConfig, Norm, common
from corepipe.models.families import llama
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.models.weight_map import Stacked, WeightMap, rotated_pairs

ROPE_THETA = 500000.0
"""The default base, as in transformers."""
ATTENTION = partial(llama.attention, norm=GraphBuilder.heads_layer_norm)
"""Attention with a gain for each head in the norms of queries and keys."""


@dataclass(frozen=True, slots=True)
class CohereConfig(ModelConfig):
    """`logit_scale` multiplies the logits; `head_norms` are LayerNorms with a gain for each head."""

    logit_scale: float = 1.0


def configure(fields: Fields) -> CohereConfig:
    """Reads the config; `use_qk_norm` is Command-R+'s: norms of queries and keys."""
    renamed = fields.renamed({"rms_norm_eps": "layer_norm_eps"}).defaulting("rms_norm_eps", 1e-5)
    renamed = renamed.defaulting("tie_word_embeddings", value=True).defaulting("rope_theta", ROPE_THETA)
    bias, normed = fields.flag("attention_bias"), fields.flag("use_qk_norm")
    config = replace(
        common(renamed), norm=Norm.LAYER_NO_BIAS, qkv_bias=bias, out_bias=bias, head_norms=normed
    )
    scale = fields.number("logit_scale", 1e-6, 1e6, 0.0625)
    return CohereConfig(**config.values(), logit_scale=scale)


def weights(config: CohereConfig) -> WeightMap:
    """Maps the gains of queries and keys: matrices [heads, head] in the order of their heads' rows."""
    heads, size = config.heads, config.heads.head_dim
    counts = {"q_norm.weight": heads.heads, "k_norm.weight": heads.kv_heads}
    gains = {
        name: Stacked((name,), (count, size), (count * size,), pairs=size) for name, count in counts.items()
    }
    return WeightMap(parts=rotated_pairs(heads), stacked=gains if config.head_norms else {})


def build(b: GraphBuilder, config: CohereConfig) -> None:
    b.scale(b.head(llama.side_by_side(b, b.embed(), ATTENTION)), config.logit_scale)
