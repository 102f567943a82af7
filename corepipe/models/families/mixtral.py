"""Mixtral: Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from corepipe.models.families import llama, mistral, moe
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.moe import MoeConfig
from corepipe.models.fields import Fields
from corepipe.models.weight_map import WeightMap


def configure(fields: Fields) -> MoeConfig:
    """Reads the config; the default rotary base is 1,000,000."""
    return described(fields.defaulting("rope_theta", 1e6))


def described(fields: Fields) -> MoeConfig:
    """Reads the config without defaults of its own; `intermediate_size` is an expert's."""
    fields = fields if "sliding_window" in fields.values else fields.replace("sliding_window", None)
    config = mistral.configure(fields.defaulting("rms_norm_eps", 1e-5))
    return moe.in_every_layer(fields, config)


def build(b: GraphBuilder, config: MoeConfig) -> None:
    llama.build(b, config, moe.in_layers(config, "block_sparse_moe"))


def weights(config: MoeConfig) -> WeightMap:
    """Maps the experts: w1 is the gate, w3 up and w2 down."""
    return moe.weights(config, ("w1", "w3", "w2"), (("block_sparse_moe", "mlp"),))
