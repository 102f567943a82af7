"""MPNet: BERT with learned biases on the scores, shared by all layers, and without token types."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from corepipe.models.config import MAX_HIDDEN, Fields
from corepipe.models.families import encoder
from corepipe.models.families.blocks import Projected
from corepipe.models.families.encoder import EncoderConfig
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.roberta import OFFSET
from corepipe.neuron.graph import Axis, Format, Graph, Value, WeightRole, WeightSpec


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
    shape, axes = (config.buckets, config.heads.heads), (Axis.TOKENS, Axis.HEAD)
    table = WeightSpec("mpnet.encoder.relative_attention_bias.weight", shape, axes, WeightRole.VECTOR)
    return encoder.build(config, fmt, max_positions, name, attend=partial(_attend, table))


def _attend(table: WeightSpec, b: GraphBuilder, qkv: Projected) -> Value:
    return b.attention(*qkv, causal=False, table=table)
