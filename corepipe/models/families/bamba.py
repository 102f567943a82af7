"""Bamba: layers of Mamba-2 and layers with attention, each with a gated feed-forward behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from corepipe.models.config import ModelConfig, common
from corepipe.models.families import llama, mamba2
from corepipe.models.families.blocks import gated_mlp
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.mamba2 import Mamba2Config
from corepipe.models.fields import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, Fields
from corepipe.models.weight_map import WeightMap
from corepipe.neuron.axes import HeadLayout, hidden
from corepipe.neuron.values import Value

LONGEST = 262_144
"""Positions where a config has none, as in transformers."""

ROTATED = 0.5
"""The rotated share of a head: transformers supports no other."""

NORMS = llama.Norms(feed_forward="pre_ff_layernorm", last="model.final_layernorm")


@dataclass(frozen=True, slots=True, kw_only=True)
class BambaConfig(ModelConfig):
    """`attending`: for each layer, whether it has attention; the others have a `mixer`."""

    attending: tuple[bool, ...]
    mixer: Mamba2Config


def configure(fields: Fields) -> BambaConfig:
    """Reads the config: half of each head is rotated; layers in `attn_layer_indices` have attention (absent:
    none)."""
    fields = fields.defaulting("max_position_embeddings", LONGEST).defaulting("rms_norm_eps", 1e-5)
    config = common(fields, rotary_share=ROTATED)
    _check_rotated(fields, config)
    bias = fields.flag("attention_bias")
    config = replace(config, qkv_bias=bias, out_bias=bias, mlp_bias=fields.flag("mlp_bias"))
    return BambaConfig(
        **config.values(), attending=_attending(fields, config.num_layers), mixer=mixer_config(fields, config)
    )


def _check_rotated(fields: Fields, config: ModelConfig) -> None:
    """Raises UserError unless `attn_rotary_emb` is half a head: transformers ignores this older key."""
    if fields.has("attn_rotary_emb"):
        asked = fields.integer("attn_rotary_emb", MAX_HEAD_DIM)
        if asked != config.rotary_dim:
            raise fields.error("attn_rotary_emb", f"({asked}) must be half a head ({config.rotary_dim})")


def _attending(fields: Fields, layers: int) -> tuple[bool, ...]:
    found: Sequence[object] = fields.items("attn_layer_indices") if fields.has("attn_layer_indices") else ()
    for layer in found:
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < min(layers, MAX_LAYERS):
            raise fields.error("attn_layer_indices", f"must be numbers of layers, from 0 to {layers - 1}")
    return tuple(layer in found for layer in range(layers))


def mixer_config(fields: Fields, config: ModelConfig) -> Mamba2Config:
    """Reads Mamba-2's keys; `mamba_d_head` may be "auto"."""
    heads, inner = (
        fields.integer("mamba_n_heads", MAX_HEADS, 128),
        fields.integer("mamba_expand", 64, 2) * config.hidden_size,
    )
    if fields.values.get("mamba_d_head") == "auto":
        fields = fields.without("mamba_d_head")
    width = fields.integer("mamba_d_head", MAX_HEAD_DIM, max(1, inner // heads))
    groups = fields.integer("mamba_n_groups", MAX_HEADS, 1)
    if heads % groups:
        raise fields.error("mamba_n_heads", f"({heads}) is not a multiple of mamba_n_groups ({groups})")
    if heads * width != inner:
        raise fields.error(
            "mamba_n_heads",
            f"({heads}) times mamba_d_head ({width}) must be mamba_expand times hidden_size ({inner})",
        )
    own = replace(config, heads=HeadLayout(heads, groups, width), mlp_bias=fields.flag("mamba_proj_bias"))
    return Mamba2Config(
        **own.values(),
        states=fields.integer("mamba_d_state", mamba2.MAX_STATES, 256),
        taps=fields.integer("mamba_d_conv", mamba2.MAX_TAPS, 4, least=2),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        limits=mamba2.limits(fields),
    )


def weights(config: BambaConfig) -> WeightMap:
    """Maps the mixers' parts as Mamba-2 does, under other names."""
    return WeightMap(parts=mamba2.mixer_parts(config.mixer))


def build(b: GraphBuilder, config: BambaConfig) -> None:
    mixed = Mixed(config.attending, config.mixer)
    b.head(llama.decoder(b, b.embed(), _feed_forward, mixed.attend, norms=NORMS, project=mixed.project))


def _feed_forward(b: GraphBuilder, x: Value) -> Value:
    return gated_mlp(b, x, f"model.layers.{b.layer}.feed_forward")


@dataclass(frozen=True, slots=True)
class Mixed:
    """The layers of a hybrid: those of `attending` have attention, the others a mixer of Mamba-2."""

    attending: tuple[bool, ...]
    mixer: Mamba2Config
    attention: llama.Attend = llama.attention

    def attend(self, b: GraphBuilder, x: Value) -> Value:
        """Appends a layer's attention or mixer, before its output projection."""
        if self.attending[b.layer]:
            return self.attention(b, x)
        return mamba2.mixer(b, x, f"model.layers.{b.layer}.mamba", self.mixer)

    def project(self, b: GraphBuilder, made: Value) -> Value:
        """Appends the output projection."""
        if self.attending[b.layer]:
            return llama.projected(b, made)
        name = f"model.layers.{b.layer}.mamba.out_proj"
        return b.linear(made, name, hidden(b.config.hidden_size), self.mixer.mlp_bias)
