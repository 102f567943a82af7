"""DistilBERT: BERT's layers under other names, without token types and pooler."""

from __future__ import annotations

from corepipe.models.families import classic, encoder
from corepipe.models.families.encoder import EncoderConfig, base
from corepipe.models.families.heads import ClassHead, HeadStep
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.models.weight_map import WeightMap
from corepipe.neuron.formats import Function
from corepipe.neuron.values import Value

__all__ = ["base", "class_head", "configure", "trunk", "weights"]

KEYS = {
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "hidden_act": "activation",
}
GUESSES = ("vocab_transform", "vocab_layer_norm", "vocab_projector")
NAMES = classic.Names(
    "distilbert.transformer.layer.{}",
    norms=("sa_layer_norm", "output_layer_norm"),
    attention="attention",
    qkv=("q_lin", "k_lin", "v_lin"),
    out="attention.out_lin",
    up="ffn.lin1",
    down="ffn.lin2",
)


def configure(fields: Fields) -> EncoderConfig:
    return encoder.configure(fields, "distilbert", KEYS, pooler=False)


def trunk(b: GraphBuilder, config: EncoderConfig) -> Value:
    """Appends the Ops up to every token's hidden state."""
    return encoder.trunk(b, config, NAMES)


def weights(config: EncoderConfig) -> WeightMap:
    return encoder.weights(config, GUESSES)


def class_head(_config: EncoderConfig) -> ClassHead:
    return ClassHead((HeadStep("pre_classifier", Function.RELU),), "classifier")
