"""MPNet: BERT with learned biases on the scores, shared by all layers, and without token types."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from corepipe.models.families import encoder
from corepipe.models.families.blocks import Projected
from corepipe.models.families.encoder import EncoderConfig, base
from corepipe.models.families.heads import ClassHead, HeadStep
from corepipe.models.families.layers import GraphBuilder, by_head
from corepipe.models.fields import MAX_HIDDEN, Fields
from corepipe.models.weight_map import WeightMap
from corepipe.neuron.axes import fixed
from corepipe.neuron.formats import Function
from corepipe.neuron.values import Value, WeightSpec

__all__ = ["base", "class_head", "configure", "trunk", "weights"]

OFFSET = 2
"""The first position's row: after the padding token's id, 1, whatever a config says."""
GUESSES = ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder")
SPELLINGS = (
    ("attention.self.query", "attention.attn.q"),
    ("attention.self.key", "attention.attn.k"),
    ("attention.self.value", "attention.attn.v"),
    ("attention.output.dense", "attention.attn.o"),
    ("attention.output.LayerNorm", "attention.LayerNorm"),
)
"""BERT's names of an attention's weights, and MPNet's."""


@dataclass(frozen=True, slots=True)
class MpnetConfig(EncoderConfig):
    """`buckets`: the number of distances with a bias of their own."""

    buckets: int = 32


def configure(fields: Fields) -> MpnetConfig:
    config = encoder.configure(fields.without("type_vocab_size"), "mpnet", offset=OFFSET, guess=Function.GELU)
    buckets = fields.integer("relative_attention_num_buckets", MAX_HIDDEN, default=32)
    return MpnetConfig(**config.values(), buckets=buckets)


def trunk(b: GraphBuilder, config: MpnetConfig) -> Value:
    """Appends the Ops up to every token's hidden state."""
    heads = fixed("head", config.heads.heads)
    table = by_head("mpnet.encoder.relative_attention_bias.weight", config.buckets, heads)
    return encoder.trunk(b, config, attend=partial(_attend, table))


def weights(config: MpnetConfig) -> WeightMap:
    return encoder.weights(config, GUESSES, SPELLINGS)


def _attend(table: WeightSpec, b: GraphBuilder, qkv: Projected) -> Value:
    return b.attention(*qkv, causal=False, distance_bias=table)


def class_head(_config: MpnetConfig) -> ClassHead:
    return ClassHead((HeadStep("classifier.dense", Function.TANH),), "classifier.out_proj")
