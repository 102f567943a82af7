"""BLOOM: ALiBi instead of positions, a norm after the embedding, biases everywhere, a tied head."""

from __future__ import annotations

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.blocks import fused
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.models.weight_map import WeightMap, heads_by_group

KEYS = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "seq_length",
    "rms_norm_eps": "layer_norm_epsilon",
}
TRAINED_POSITIONS = 2048
"""The length that all BLOOM models were trained with; some of their configs omit it."""


def configure(fields: Fields) -> ModelConfig:
    """Reads the config; some call the hidden size `n_embed`."""
    fields.refuse("apply_residual_connection_post_layernorm")
    if fields.has("n_embed"):
        fields = fields.renamed({"hidden_size": "n_embed"})
    return classic.configure(fields.defaulting("seq_length", TRAINED_POSITIONS), KEYS, "gelu_pytorch_tanh")


def weights(config: ModelConfig) -> WeightMap:
    """Maps each head's query, key and value, which are neighbours in one matrix."""
    return WeightMap(
        "transformer.", parts=heads_by_group("query_key_value", fused("query_key_value"), config.heads)
    )


def build(b: GraphBuilder, _config: ModelConfig) -> None:
    x = b.norm(b.embed("transformer.word_embeddings.weight"), "transformer.word_embeddings_layernorm")
    names = classic.fused_names("transformer.h.{}", "self_attention")
    classic.decoder(b, x, names, classic.alibi, "transformer.ln_f")
