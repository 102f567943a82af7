"""ALBERT: all layers have the same weights; the embedding is narrow."""

from __future__ import annotations

from corepipe.models.families import classic, encoder
from corepipe.models.families.encoder import EncoderConfig, base
from corepipe.models.families.heads import ClassHead, HeadStep
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import MAX_HIDDEN, Fields
from corepipe.models.weight_map import WeightMap
from corepipe.neuron.formats import Function
from corepipe.neuron.values import Value

__all__ = ["base", "class_head", "configure", "trunk", "weights"]

NAMES = classic.Names(
    "albert.encoder.albert_layer_groups.0.albert_layers.0",
    norms=("attention.LayerNorm", "full_layer_layer_norm"),
    attention="attention",
    out="attention.dense",
    up="ffn",
    down="ffn_output",
    qkv=("query", "key", "value"),
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
    return encoder.trunk(b, config, NAMES, project="albert.encoder.embedding_hidden_mapping_in")


def weights(config: EncoderConfig) -> WeightMap:
    """Maps the names; the pooler is a single matrix."""
    return encoder.weights(config, GUESSES, [("pooler.dense.", "pooler.")])


def class_head(_config: EncoderConfig) -> ClassHead:
    return ClassHead((HeadStep("albert.pooler.dense", Function.TANH),), "classifier")
