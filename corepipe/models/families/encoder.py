"""What BERT and its like share: embeddings, layers with their norms last, and what is made of the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from corepipe.models.config import MAX_HIDDEN, Fields, ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.layers import GraphBuilder
from corepipe.neuron.graph import Format, Graph, Output, OutputKind, Value, hidden
from corepipe.neuron.ops import Function, RowIndex

HEADS = ("base", "masked-lm")
MAX_TYPES = 1 << 10


@dataclass(frozen=True, slots=True)
class EncoderConfig(ModelConfig):
    """An encoder of text.

    `prefix` of all weights; `embedding_size` where it is not the hidden size; `token_types` (0: none);
    positions start at row `offset` of their table.  `masked_lm`: logits of every token instead of the base
    model's result, which is a vector a sequence if it has a `pooler`, and otherwise one a token.
    """

    prefix: str = ""
    embedding_size: int = 0
    token_types: int = 0
    offset: int = 0
    pooler: bool = True
    masked_lm: bool = False


def configure(
    fields: Fields,
    prefix: str,
    keys: Mapping[str, str] | None = None,
    function: str = "gelu",
    offset: int = 0,
    pooler: bool = True,
) -> EncoderConfig:
    """From a config's keys; `head: masked-lm` is ours, for an encoder that is used to fill in masked tokens.

    `max_position_embeddings` counts the rows of the table, of which `offset` are not positions.
    """
    fields = fields.renamed({"rms_norm_eps": "layer_norm_eps"} if keys is None else keys)
    config = classic.configure(fields, {}, function)
    masked = fields.require("head", HEADS, "base") == "masked-lm"
    positions = config.max_positions - offset
    if positions < 1:
        raise fields.error("max_position_embeddings", f"must be more than {offset}")
    changes = {"max_positions": positions, "tied": masked}
    return EncoderConfig(
        **{**config.values(), **changes},
        prefix=prefix,
        embedding_size=fields.integer("embedding_size", MAX_HIDDEN, default=config.hidden_size),
        token_types=fields.integer("type_vocab_size", MAX_TYPES, default=0, least=0),
        offset=offset,
        pooler=pooler,
        masked_lm=masked,
    )


def embeddings(b: GraphBuilder, config: EncoderConfig) -> Value:
    """Words, positions and token types, normed."""
    name = f"{config.prefix}.embeddings"
    x = b.embed(f"{name}.word_embeddings.weight", config.embedding_size)
    if config.token_types:
        table = f"{name}.token_type_embeddings.weight"
        x = b.add_embedding(x, table, config.token_types, RowIndex.TYPE)
    table, count = f"{name}.position_embeddings.weight", config.max_positions + config.offset
    x = b.add_embedding(x, table, count, offset=config.offset)
    return b.norm(x, f"{name}.LayerNorm")


def bert_names(prefix: str, layer: int) -> classic.Names:
    """Weights of a layer of BERT."""
    block = f"{prefix}.encoder.layer.{layer}"
    return classic.Names(
        norms=(f"{block}.attention.output.LayerNorm", f"{block}.output.LayerNorm"),
        attention=f"{block}.attention.self",
        qkv=("query", "key", "value"),
        out=f"{block}.attention.output.dense",
        up=f"{block}.intermediate.dense",
        down=f"{block}.output.dense",
    )


def build(
    config: EncoderConfig,
    fmt: Format,
    max_positions: int,
    name: str,
    names: Callable[[int], classic.Names] | None = None,
    attend: classic.Attend = classic.bidirectional,
) -> Graph:
    """The forward pass.  `names` of a layer's weights, or BERT's."""
    b = GraphBuilder(config, every_row=True)
    x = embeddings(b, config)
    if config.embedding_size != config.hidden_size:
        x = b.linear(x, f"{config.prefix}.embeddings_project", hidden(config.hidden_size), bias=True)
    for layer in b.layers():
        x = classic.norm_last(b, x, (names or partial(bert_names, config.prefix))(layer), attend)
    return finish(b, x, config, name, fmt, max_positions)


def finish(
    b: GraphBuilder, x: Value, config: EncoderConfig, name: str, fmt: Format, max_positions: int
) -> Graph:
    """The head that the config asks for, if any.

    The base model returns every token's hidden state, and beside it a vector a sequence if it has a pooler.
    """
    outputs = [] if config.masked_lm else [Output(x, OutputKind.HIDDEN)]
    decoder, table = "cls.predictions.decoder", f"{config.prefix}.embeddings.word_embeddings.weight"
    if config.masked_lm:
        x = b.linear(x, "cls.predictions.transform.dense", hidden(config.embedding_size), bias=True)
        x = b.norm(b.activation(x), "cls.predictions.transform.LayerNorm")
        b.head(x, decoder, bias=True)
    elif config.pooler:
        first = b.select_rows(x)
        pooled = b.linear(first, f"{config.prefix}.pooler.dense", hidden(config.hidden_size), bias=True)
        outputs.append(Output(b.activation(pooled, Function.TANH), OutputKind.VECTOR))
    tied = (f"{decoder}.weight", table)
    return b.finish(name, fmt, max_positions, tied, causal=False, outputs=outputs)
