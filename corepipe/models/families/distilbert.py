"""DistilBERT: BERT's layers under other names, without token types and pooler."""

from __future__ import annotations

from corepipe.models.config import Fields
from corepipe.models.families import classic, encoder
from corepipe.models.families.encoder import EncoderConfig
from corepipe.neuron.graph import Format, Graph

KEYS = {
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "hidden_act": "activation",
}


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


def build(config: EncoderConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """The forward pass: token ids to a vector a token."""
    return encoder.build(config, fmt, max_positions, name, _names)
