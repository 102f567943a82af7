"""BLOOM: ALiBi instead of positions, a norm after the embedding, biases everywhere, a tied head."""

from __future__ import annotations

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.blocks import fused
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.models.weight_map import WeightMap, heads_by_group
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import Graph

EMBEDDING = "transformer.word_embeddings.weight"
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


def build(config: ModelConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """Builds the forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.norm(b.embed(EMBEDDING), "transformer.word_embeddings_layernorm")
    for layer in b.layers():
        x = classic.sequential(
            b, x, classic.fused_names(f"transformer.h.{layer}", "self_attention"), classic.alibi
        )
    b.head(b.norm(x, "transformer.ln_f"))
    return b.finish(name, fmt, max_positions, tied=("lm_head.weight", EMBEDDING))
