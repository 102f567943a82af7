"""GPT-NeoX and Pythia: rotary positions on part of each head; parallel blocks, each with its own norm."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.blocks import fused
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.models.weight_map import WeightMap, heads_by_group

KEYS = {
    "rms_norm_eps": "layer_norm_eps",
    "partial_rotary_factor": "rotary_pct",
    "rope_theta": "rotary_emb_base",
}


@dataclass(frozen=True, slots=True)
class GptNeoxConfig(ModelConfig):
    """`parallel`: attention and feed-forward both read the layer's input."""

    parallel: bool = True


def configure(fields: Fields) -> GptNeoxConfig:
    """Reads the config: `rotary_pct` of each head is rotated; `use_parallel_residual`: parallel blocks."""
    config = classic.configure(fields, KEYS, "gelu", tied=False, rotary_share=0.25)
    bias = fields.flag("attention_bias", default=True)
    config = replace(config, qkv_bias=bias, out_bias=bias)
    return GptNeoxConfig(**config.values(), parallel=fields.flag("use_parallel_residual", default=True))


def weights(config: GptNeoxConfig) -> WeightMap:
    """Maps each head's query, key and value, which are neighbours in one matrix."""
    parts = heads_by_group("query_key_value", fused("query_key_value"), config.heads)
    return WeightMap("gpt_neox.", parts=parts)


def build(b: GraphBuilder, config: GptNeoxConfig) -> None:
    block = classic.parallel if config.parallel else classic.sequential
    x, last = b.embed("gpt_neox.embed_in.weight"), "gpt_neox.final_layer_norm"
    names = classic.fused_names("gpt_neox.layers.{}", "attention")
    classic.decoder(b, x, names, classic.rotary, last, block, "embed_out")
