"""StableLM: Llama with LayerNorm and rotary positions on a quarter of each head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from corepipe.models.config import ModelConfig, Norm, common
from corepipe.models.families import llama
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.models.weight_map import Stacked, WeightMap

ATTENTION = partial(llama.attention, norm=GraphBuilder.heads_layer_norm, named="layernorm")
"""Attention with a gain for each head in the norms of queries and keys."""


@dataclass(frozen=True, slots=True)
class StableLmConfig(ModelConfig):
    """`parallel`: attention and feed-forward side by side. `head_norms` are LayerNorms with a gain for each
    head."""

    parallel: bool = False


def configure(fields: Fields) -> StableLmConfig:
    """Reads the config; `qk_layernorm` and `use_parallel_residual` are of the 12b model."""
    renamed = fields.renamed({"rms_norm_eps": "layer_norm_eps"}).defaulting("rms_norm_eps", 1e-5)
    config = replace(
        common(renamed, rotary_share=0.25),
        qkv_bias=fields.flag("use_qkv_bias"),
        norm=Norm.LAYER,
        head_norms=fields.flag("qk_layernorm"),
    )
    return StableLmConfig(**config.values(), parallel=fields.flag("use_parallel_residual"))


def weights(config: StableLmConfig) -> WeightMap:
    """Maps each head's gain, which is a tensor of its own."""
    heads, size = config.heads, config.heads.head_dim
    counts = {"q_layernorm": heads.heads, "k_layernorm": heads.kv_heads}
    gains = {
        f"{name}.weight": Stacked(
            tuple(f"{name}.norms.{head}.weight" for head in range(count)), (size,), (count * size,)
        )
        for name, count in counts.items()
    }
    return WeightMap(stacked=gains if config.head_norms else {})


def build(b: GraphBuilder, config: StableLmConfig) -> None:
    if config.parallel:
        b.head(llama.side_by_side(b, b.embed(), ATTENTION))
    else:
        llama.build(b, config, attend=ATTENTION)
