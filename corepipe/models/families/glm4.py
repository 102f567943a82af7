"""GLM-4: Llama with additional norms after each block, and rotary positions on half of each head."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig, common
from corepipe.models.families import llama
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.phi3 import gate_up
from corepipe.models.fields import Fields
from corepipe.models.weight_map import WeightMap, rotated_pairs

NORMS = llama.Norms(
    "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"
)


def configure(fields: Fields) -> ModelConfig:
    """Reads the config; `attention_bias` puts biases on q, k and v."""
    fields = fields.defaulting("head_dim", 128).defaulting("rms_norm_eps", 1.5625e-7)
    config = common(fields, rotary_share=0.5)
    return replace(config, qkv_bias=fields.flag("attention_bias", default=True))


def weights(config: ModelConfig) -> WeightMap:
    return WeightMap(parts=rotated_pairs(config.heads, config.rotary_dim) | gate_up(config))


def build(b: GraphBuilder, _config: ModelConfig) -> None:
    b.head(llama.decoder(b, b.embed(), norms=NORMS))
