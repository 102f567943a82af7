"""Granite 4: layers of Mamba-2 and of attention, each with a feed-forward, alone or beside experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from corepipe.models.expert_weights import ways
from corepipe.models.families import bamba, granite, llama, mamba2, moe
from corepipe.models.families.blocks import gated_mlp
from corepipe.models.families.granite import GraniteConfig
from corepipe.models.families.granitemoe import FUSED
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.mamba2 import Mamba2Config
from corepipe.models.families.moe import MoeConfig
from corepipe.models.fields import MAX_FFN, Fields
from corepipe.models.weight_map import WeightMap, in_turn
from corepipe.neuron.axes import columns
from corepipe.neuron.values import Value

KINDS = {"mamba": False, "linear_attention": False, "attention": True, "full_attention": True}
"""The kinds of layers in configs: True for those with attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraniteMoeHybridConfig(GraniteConfig):
    """`attending`: for each layer, whether it has attention; the others have a `mixer`. `mixture`: None where
    there are no experts; `shared_ffn`: the width of the feed-forward of every token."""

    attending: tuple[bool, ...]
    mixer: Mamba2Config
    mixture: MoeConfig | None
    shared_ffn: int


def configure(fields: Fields) -> GraniteMoeHybridConfig:
    """Reads the config: `intermediate_size` is an expert's; defaults are those of transformers."""
    for key, value in (
        ("max_position_embeddings", 2048),
        ("num_local_experts", 8),
        ("num_experts_per_tok", 2),
    ):
        fields = fields.defaulting(key, value)
    fields.refuse("mlp_bias")
    config = llama.configure(fields)
    if fields.require("position_embedding_type", ("nope", "rope"), "nope") == "nope":
        config = replace(config, layer_ropes=(None,) * config.num_layers)
    mixture = None
    if fields.values["num_local_experts"] != 0:
        mixture = moe.in_every_layer(fields, config)
    return GraniteMoeHybridConfig(
        **config.values(),
        **granite.constants(fields),
        attending=_attending(fields, config.num_layers),
        mixer=bamba.mixer_config(fields, config),
        mixture=mixture,
        shared_ffn=fields.integer("shared_intermediate_size", MAX_FFN, 1024),
    )


def _attending(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Reads the layers with attention from `layer_types`, once `layers_block_type` (absent: none)."""
    key = "layer_types" if fields.has("layer_types") else "layers_block_type"
    if not fields.has(key):
        return (False,) * layers
    kinds = fields.items(key)
    if len(kinds) != layers or not all(isinstance(kind, str) and kind in KINDS for kind in kinds):
        raise fields.error(key, f"must be a list of {layers} names (known: {', '.join(KINDS)})")
    return tuple(KINDS[kind] for kind in kinds)


def weights(config: GraniteMoeHybridConfig) -> WeightMap:
    """Maps Mamba-2's parts as Bamba does; gate and up of shared feed-forwards are one matrix, as experts'."""
    both = {"gate_proj": config.shared_ffn, "up_proj": config.shared_ffn}
    parts = mamba2.mixer_parts(config.mixer) | in_turn("input_linear", both)
    mixture = config.mixture
    if mixture is None:
        return WeightMap(parts=parts)
    experts = ways(mixture.experts, mixture.expert_ffn, config.hidden_size, fused=FUSED)
    return WeightMap(parts=parts, experts=experts)


def build(b: GraphBuilder, config: GraniteMoeHybridConfig) -> None:
    attend = partial(llama.attention, scale=config.attention_factor)
    mixed = bamba.Mixed(config.attending, config.mixer, attend)
    granite.build(b, config, partial(_feed_forward, config), mixed.attend, mixed.project)


def _feed_forward(config: GraniteMoeHybridConfig, b: GraphBuilder, x: Value) -> Value:
    block, names = f"model.layers.{b.layer}", ("gate_proj", "up_proj", "output_linear")
    every = gated_mlp(b, x, f"{block}.shared_mlp", names, columns("shared_ffn", config.shared_ffn))
    if config.mixture is None:
        return every
    return b.add(moe.experts(b, x, f"{block}.block_sparse_moe", config.mixture, "router.layer"), every)
