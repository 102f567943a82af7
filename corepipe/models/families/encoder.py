"""Shared by BERT and its relatives: embeddings, post-norm layers, and the heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import MAX_HIDDEN, Fields
from corepipe.models.weight_map import WeightMap
from corepipe.neuron.axes import hidden
from corepipe.neuron.ops import Function, RowIndex
from corepipe.neuron.values import OutputKind, Value

HEADS = ("base", "masked-lm")
MAX_TYPES = 1 << 10
EPS = 1e-12
"""The norms' constant where a config has none."""

GUESSES = (
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
)
"""Modules that compute logits of every token: a matrix and its function, a norm, the vocabulary's matrix."""
OLD_NORMS = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
"""Names of norms in the first checkpoints, which TensorFlow wrote."""


@dataclass(frozen=True, slots=True)
class EncoderConfig(ModelConfig):
    """A config of a text encoder.

    `prefix` of all weights; `embedding_size` where it is not the hidden size; `token_types` (0: none);
    positions start at row `offset` of their table. `masked_lm`: logits of every token instead of the base
    model's result, which is a vector a sequence if it has a `pooler`, and otherwise one a token; `guess`: the
    function before these logits.
    """

    prefix: str = ""
    embedding_size: int = 0
    token_types: int = 0
    offset: int = 0
    pooler: bool = True
    masked_lm: bool = False
    guess: Function = Function.GELU


def configure(
    fields: Fields,
    prefix: str,
    keys: Mapping[str, str] | None = None,
    function: str = "gelu",
    offset: int = 0,
    pooler: bool = True,
    guess: Function | None = None,
) -> EncoderConfig:
    """Reads a config; `head: masked-lm` is our own key, for an encoder that fills in masked tokens.

    `max_position_embeddings` counts the rows of the table, of which `offset` are not positions. `guess`: the
    function before the logits of masked tokens, None for the feed-forward's.
    """
    fields.refuse("is_decoder", "add_cross_attention")
    fields.require("position_embedding_type", ("absolute",), "absolute")
    fields = fields.renamed({"rms_norm_eps": "layer_norm_eps"} if keys is None else keys)
    config = classic.configure(fields.defaulting("rms_norm_eps", EPS), {}, function)
    masked = fields.require("head", HEADS, "base") == "masked-lm"
    positions = config.max_positions - offset
    if positions < 1:
        raise fields.error("max_position_embeddings", f"must be more than {offset}")
    tied = masked and fields.flag("tie_word_embeddings", default=True)
    changes = {"max_positions": positions, "tied": tied}
    return EncoderConfig(
        **{**config.values(), **changes},
        prefix=prefix,
        embedding_size=fields.integer("embedding_size", MAX_HIDDEN, default=config.hidden_size),
        token_types=fields.integer("type_vocab_size", MAX_TYPES, default=0, least=0),
        offset=offset,
        pooler=pooler,
        masked_lm=masked,
        guess=guess or config.function,
    )


def embeddings(b: GraphBuilder, config: EncoderConfig) -> Value:
    """Appends the sum of words, positions and token types, and its norm."""
    name = f"{config.prefix}.embeddings"
    x = b.embed(f"{name}.word_embeddings.weight", config.embedding_size)
    if config.token_types:
        table = f"{name}.token_type_embeddings.weight"
        x = b.add_embedding(x, table, config.token_types, RowIndex.TYPE)
    table, count = f"{name}.position_embeddings.weight", config.max_positions + config.offset
    x = b.add_embedding(x, table, count, offset=config.offset)
    return b.norm(x, f"{name}.LayerNorm")


def bert_names(prefix: str) -> classic.Names:
    """Returns the names of a BERT layer's weights."""
    return classic.Names(
        f"{prefix}.encoder.layer.{{}}",
        norms=("attention.output.LayerNorm", "output.LayerNorm"),
        attention="attention.self",
        out="attention.output.dense",
        up="intermediate.dense",
        down="output.dense",
        qkv=("query", "key", "value"),
    )


def trunk(
    b: GraphBuilder,
    config: EncoderConfig,
    names: classic.Names | None = None,
    attend: classic.Attend = classic.bidirectional,
    project: str | None = None,
) -> Value:
    """Appends the Ops up to every token's hidden state.

    names: of a layer's weights (None: BERT's). project: the matrix after the embeddings (None: ELECTRA's,
    where their size is not the hidden size).
    """
    x = embeddings(b, config)
    if project or config.embedding_size != config.hidden_size:
        name = project or f"{config.prefix}.embeddings_project"
        x = b.linear(x, name, hidden(config.hidden_size), bias=True)
    for _ in b.layers():
        x = classic.norm_last(b, x, names or bert_names(config.prefix), attend)
    return x


def base(b: GraphBuilder, x: Value, config: EncoderConfig) -> None:
    """Appends the head that the config asks for, if any, to the hidden states.

    The base model returns every token's hidden state, and beside it a vector a sequence if it has a pooler.
    """
    if config.masked_lm:
        dense, norm, decoder = GUESSES
        x = b.linear(x, dense, hidden(config.embedding_size), bias=True)
        b.head(b.norm(b.activation(x, config.guess), norm), decoder, bias=True)
        return
    b.give(x, OutputKind.HIDDEN)
    if config.pooler:
        first = b.select_rows(x)
        pooled = b.linear(first, f"{config.prefix}.pooler.dense", hidden(config.hidden_size), bias=True)
        b.give(b.activation(pooled, Function.TANH), OutputKind.VECTOR)


def weights(
    config: EncoderConfig, guesses: Sequence[str] = GUESSES, spellings: Sequence[tuple[str, str]] = ()
) -> WeightMap:
    """Maps names with the prefix or, where the base model was saved, without it.

    guesses: the family's own names of GUESSES; the bias of the vocabulary stands beside its matrix.
    """
    renamed = [pair for pair in zip(GUESSES, guesses, strict=True) if pair[0] != pair[1]]
    lone = f"{guesses[-1].rpartition('.')[0]}.bias".removeprefix(".")
    bias = [(f"{guesses[-1]}.bias", lone)] if "." in guesses[-1] else []
    return WeightMap(f"{config.prefix}.", spellings=(*renamed, *bias, *OLD_NORMS, *spellings))
