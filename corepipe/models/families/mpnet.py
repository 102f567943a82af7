"""MPNet: BERT with learned biases on the scores, shared by all layers, and without token types."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from corepipe.models.config import MAX_HIDDEN, Fields
from corepipe.models.families import encoder
from corepipe.models.families.blocks import Projected
from corepipe.models.families.encoder import EncoderConfig
from corepipe.models.families.layers import GraphBuilder, by_head
from corepipe.models.families.roberta import OFFSET
from corepipe.neuron.graph import Format, Graph, Value, WeightSpec, fixed


@dataclass(frozen=True, slots=True)
class MpnetConfig(EncoderConfig):
    """`buckets` of distances that have a bias of their own."""

    buckets: int = 32


def configure(fields: Fields) -> MpnetConfig:
    config = encoder.configure(fields.without("type_vocab_size"), "mpnet", offset=OFFSET)
    buckets = fields.integer("relative_attention_num_buckets", MAX_HIDDEN, default=32)
    return MpnetConfig(**config.values(), buckets=buckets)


def build(config: MpnetConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """The forward pass: token ids to a vector a sequence."""
    heads = fixed("head", config.heads.heads)
    table = by_head("mpnet.encoder.relative_attention_bias.weight", config.buckets, heads)
    return encoder.build(config, fmt, max_positions, name, attend=partial(_attend, table))


def _attend(table: WeightSpec, b: GraphBuilder, qkv: Projected) -> Value:
    return b.attention(*qkv, causal=False, distance_bias=table)
