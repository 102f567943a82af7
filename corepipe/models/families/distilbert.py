"""DistilBERT: BERT's layers under other names, without token types and pooler."""

from __future__ import annotations

from corepipe.models.families import classic, encoder
from corepipe.models.families.encoder import EncoderConfig
from corepipe.models.families.heads import ClassHead, HeadStep
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.models.weight_map import WeightMap
from corepipe.neuron.formats import Format, Function
from corepipe.neuron.graph import Graph
from corepipe.neuron.values import Value

KEYS = {
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "hidden_act": "activation",
}
GUESSES = ("vocab_transform", "vocab_layer_norm", "vocab_projector")


def configure(fields: Fields) -> EncoderConfig:
    return encoder.configure(fields, "distilbert", KEYS, pooler=False)


def _names(layer: int) -> classic.Names:
    block = f"distilbert.transformer.layer.{layer}"
    return classic.Names(
        norms=(f"{block}.sa_layer_norm", f"{block}.output_layer_norm"),
        attention=f"{block}.attention",
        qkv=("q_lin", "k_lin", "v_lin"),
        out=f"{block}.attention.out_lin",
        up=f"{block}.ffn.lin1",
        down=f"{block}.ffn.lin2",
    )


def trunk(b: GraphBuilder, config: EncoderConfig) -> Value:
    """Appends the Ops up to every token's hidden state."""
    return encoder.trunk(b, config, _names)


def build(config: EncoderConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """Builds the forward pass: token ids to a vector a token."""
    return encoder.build(config, fmt, max_positions, name, trunk)


def weights(config: EncoderConfig) -> WeightMap:
    return encoder.weights(config, GUESSES)


def class_head(_config: EncoderConfig) -> ClassHead:
    return ClassHead((HeadStep("pre_classifier", Function.RELU),), "classifier")
