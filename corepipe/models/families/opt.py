"""OPT: learned positions, ReLU, biases everywhere, a tied head; the 350m model is post-norm."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import MAX_HIDDEN, Fields
from corepipe.models.weight_map import WeightMap
from corepipe.neuron.axes import hidden

OFFSET = 2
"""Positions start at the third row of their table."""

KEYS = {"intermediate_size": "ffn_dim", "hidden_act": "activation_function"}
NAMES = classic.Names(
    "model.decoder.layers.{}",
    norms=("self_attn_layer_norm", "final_layer_norm"),
    attention="self_attn",
    out="self_attn.out_proj",
    up="fc1",
    down="fc2",
)


@dataclass(frozen=True, slots=True)
class OptConfig(ModelConfig):
    """`embedding_size` is not the hidden size in the 350m model; `norm_first`: norms precede the blocks, and
    the last layer's output has a `final_norm`."""

    embedding_size: int = 0
    norm_first: bool = True
    final_norm: bool = True


def configure(fields: Fields) -> OptConfig:
    """Reads the config; `enable_bias: false` leaves the linears without biases."""
    if not fields.flag("layer_norm_elementwise_affine", default=True):
        raise fields.error("layer_norm_elementwise_affine", "must be true: plain norms are not supported")
    bias = fields.flag("enable_bias", default=True)
    config = classic.configure(fields, KEYS, "relu")
    config = replace(config, qkv_bias=bias, out_bias=bias, mlp_bias=bias)
    return OptConfig(
        **config.values(),
        embedding_size=fields.integer("word_embed_proj_dim", MAX_HIDDEN, default=config.hidden_size),
        norm_first=fields.flag("do_layer_norm_before", default=True),
        final_norm=not fields.flag("_remove_final_layer_norm"),
    )


def weights(_config: OptConfig) -> WeightMap:
    return WeightMap("model.decoder.", ("decoder.", ""))


def build(b: GraphBuilder, config: OptConfig) -> None:
    block = classic.sequential if config.norm_first else classic.norm_last
    projected = config.embedding_size != config.hidden_size
    x = b.embed("model.decoder.embed_tokens.weight", config.embedding_size)
    if projected:
        x = b.linear(x, "model.decoder.project_in", hidden(config.hidden_size))
    table = "model.decoder.embed_positions.weight"
    x = b.add_embedding(x, table, config.max_positions + OFFSET, offset=OFFSET)
    for _ in b.layers():
        x = block(b, x, NAMES, classic.plain)
    if config.norm_first and config.final_norm:
        x = b.norm(x, "model.decoder.final_layer_norm")
    if projected:
        x = b.linear(x, "model.decoder.project_out", hidden(config.embedding_size))
    b.head(x)
