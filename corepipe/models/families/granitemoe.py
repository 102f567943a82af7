"""Granite 3 with a mixture of experts in every layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from corepipe.models.expert_weights import ways
from corepipe.models.families import granite, llama, moe
from corepipe.models.families.granite import GraniteConfig
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.moe import MoeConfig
from corepipe.models.fields import Fields
from corepipe.models.weight_map import WeightMap
from corepipe.neuron.values import Value

FUSED = ("input_linear.weight", "output_linear.weight")
"""Tensors with gate and up of all experts, and with their downs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraniteMoeConfig(GraniteConfig):
    """A config with Granite's constants, and the mixture of experts that replaces its feed-forward."""

    mixture: MoeConfig


def configure(fields: Fields) -> GraniteMoeConfig:
    """Reads the config: `intermediate_size` is an expert's; by default a token takes 2 of 8 experts."""
    fields = fields.defaulting("num_local_experts", 8).defaulting("num_experts_per_tok", 2)
    config = llama.configure(fields)
    mixture = moe.in_every_layer(fields, config)
    return GraniteMoeConfig(**config.values(), **granite.constants(fields), mixture=mixture)


def build(b: GraphBuilder, config: GraniteMoeConfig) -> None:
    granite.build(b, config, partial(_feed_forward, config.mixture))


def _feed_forward(config: MoeConfig, b: GraphBuilder, x: Value) -> Value:
    return moe.experts(b, x, f"model.layers.{b.layer}.block_sparse_moe", config, "router.layer")


def weights(config: GraniteMoeConfig) -> WeightMap:
    """Maps two tensors with the matrices of all experts."""
    mixture = config.mixture
    return WeightMap(experts=ways(mixture.experts, mixture.expert_ffn, config.hidden_size, fused=FUSED))
