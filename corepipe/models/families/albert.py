"""ALBERT: all layers have the same weights; the embedding is narrow."""

from __future__ import annotations

from corepipe.models.families import classic, encoder
from corepipe.models.families.encoder import EncoderConfig
from corepipe.models.families.heads import ClassHead, HeadStep
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import MAX_HIDDEN, Fields
from corepipe.models.weight_map import WeightMap
from corepipe.neuron.axes import hidden
from corepipe.neuron.formats import Format, Function
from corepipe.neuron.graph import Graph
from corepipe.neuron.values import Value

LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"
NAMES = classic.Names(
    norms=(f"{LAYER}.attention.LayerNorm", f"{LAYER}.full_layer_layer_norm"),
    attention=f"{LAYER}.attention",
    qkv=("query", "key", "value"),
    out=f"{LAYER}.attention.dense",
    up=f"{LAYER}.ffn",
    down=f"{LAYER}.ffn_output",
)

GUESSES = ("predictions.dense", "predictions.LayerNorm", "predictions.decoder")


def configure(fields: Fields) -> EncoderConfig:
    """Reads the config. Raises UserError for more than one group of layers."""
    for key in ("num_hidden_groups", "inner_group_num"):
        if fields.integer(key, MAX_HIDDEN, default=1) != 1:
            raise fields.error(key, "other than 1 is not supported")
    return encoder.configure(fields.defaulting("type_vocab_size", 2), "albert", function="gelu_new")


def trunk(b: GraphBuilder, config: EncoderConfig) -> Value:
    """Appends the Ops up to every token's hidden state."""
    x = encoder.embeddings(b, config)
    mapping = "albert.encoder.embedding_hidden_mapping_in"
    x = b.linear(x, mapping, hidden(config.hidden_size), bias=True)
    for _ in b.layers():
        x = classic.norm_last(b, x, NAMES, classic.bidirectional)
    return x


def build(config: EncoderConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """Builds the forward pass: token ids to a vector a sequence."""
    return encoder.build(config, fmt, max_positions, name, trunk)


def weights(config: EncoderConfig) -> WeightMap:
    """Maps the names; the pooler is a single matrix."""
    return encoder.weights(config, GUESSES, [("pooler.dense.", "pooler.")])


def class_head(_config: EncoderConfig) -> ClassHead:
    return ClassHead((HeadStep("albert.pooler.dense", Function.TANH),), "classifier")
