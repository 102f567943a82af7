"""Gemma: Llama with GELU, large heads, a scaled embedding and a tied head."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import FUNCTIONS, ModelConfig, common
from corepipe.models.families import llama
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.models.weight_map import WeightMap


def gemma_common(fields: Fields) -> ModelConfig:
    """Reads the keys of all Gemmas: GELU, whatever `hidden_act` of the first ones says, and a tied head."""
    function = fields.text("hidden_activation", "gelu_pytorch_tanh")
    fields.refuse("use_bidirectional_attention")
    bias = fields.flag("attention_bias")
    fields = fields.replace("hidden_act", function).defaulting("tie_word_embeddings", value=True)
    config = common(fields.defaulting("head_dim", 256), FUNCTIONS)
    return replace(config, qkv_bias=bias, out_bias=bias)


configure = gemma_common


def weights(_config: ModelConfig) -> WeightMap:
    """Maps gains, which are kept less one; the text decoder of a multimodal model has its own prefix."""
    return WeightMap(prefixes=("model.language_model.", "language_model.model.", ""), less_one=("norm",))


def build(b: GraphBuilder, config: ModelConfig) -> None:
    b.head(llama.decoder(b, b.scale(b.embed(), config.hidden_size**0.5)))
