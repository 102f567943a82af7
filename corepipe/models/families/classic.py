"""Decoders from before Llama: LayerNorm, a feed-forward of two matrices, mostly with biases.

gpt2, opt, bloom, falcon and similar families differ in the names of their weights, in the kind of positions,
and in whether attention and feed-forward follow one another or are computed side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from corepipe.models.config import FUNCTIONS, ModelConfig, Norm, common
from corepipe.models.families.blocks import Projected, fused, mlp, output, project
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import MAX_HIDDEN, Fields
from corepipe.neuron.numerics.attention import alibi_slopes
from corepipe.neuron.values import Value

Attend = Callable[[GraphBuilder, Projected], Value]
"""A function that appends attention over projected queries, keys and values."""

GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}
"""GPT-2's names of keys by Llama's."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a layer's weights under `block`, in which {} stands for the layer's number. `qkv` are
    under `attention`; a single norm serves both blocks."""

    block: str
    norms: tuple[str, ...]
    attention: str
    out: str
    up: str
    down: str
    qkv: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")

    def of(self, layer: int) -> Names:
        """Returns the whole names of a layer."""
        block = self.block.format(layer)
        attention, out, up, down = (
            f"{block}.{part}" for part in (self.attention, self.out, self.up, self.down)
        )
        norms = tuple(f"{block}.{norm}" for norm in self.norms)
        return Names(block, norms, attention, out, up, down, self.qkv)


def fused_names(block: str, attention: str) -> Names:
    """Returns the names of a layer of BLOOM, Falcon or GPT-NeoX."""
    return Names(
        block,
        norms=("input_layernorm", "post_attention_layernorm"),
        attention=attention,
        out=f"{attention}.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
        qkv=fused("query_key_value"),
    )


def configure(
    fields: Fields,
    keys: Mapping[str, str],
    function: str,
    tied: bool = True,
    rotary_share: float | None = None,
) -> ModelConfig:
    """Reads a config with biases everywhere; `function`, `tied` and `rotary_share` are defaults.

    The feed-forward is four times as wide as the model unless the config says otherwise.
    """
    fields = fields.renamed(keys)
    hidden = fields.integer("hidden_size", MAX_HIDDEN)
    fields = fields.defaulting("intermediate_size", 4 * hidden).defaulting("tie_word_embeddings", tied)
    fields = fields.defaulting("rms_norm_eps", 1e-5)
    config = common(fields, (function, *FUNCTIONS), rotary_share)
    return replace(config, qkv_bias=True, out_bias=True, mlp_bias=True, norm=Norm.LAYER)


def scaled_attention(fields: Fields) -> None:
    """Raises UserError for scores that are not divided by the root of the head's size."""
    if not fields.flag("scale_attn_weights", default=True):
        raise fields.error("scale_attn_weights", "must be true: other scores are not supported")


def plain(b: GraphBuilder, qkv: Projected) -> Value:
    """Appends attention without positions."""
    return b.attention(*qkv)


def bidirectional(b: GraphBuilder, qkv: Projected) -> Value:
    """Appends an encoder's attention: every row to every row."""
    return b.attention(*qkv, causal=False)


def rotary(b: GraphBuilder, qkv: Projected) -> Value:
    q, k, v = qkv
    return b.attention(b.rope(q), b.rope(k), v)


def alibi(b: GraphBuilder, qkv: Projected) -> Value:
    """Appends attention whose scores fall with distance (Press et al. 2022)."""
    return b.attention(*qkv, alibi=alibi_slopes(b.config.heads.heads))


def sequential(b: GraphBuilder, x: Value, names: Names, attend: Attend) -> Value:
    """Appends x plus attention of its norm; that plus the feed-forward of its norm."""
    names = names.of(b.layer)
    attended = attend(b, project(b, b.norm(x, names.norms[0]), names.attention, names.qkv))
    attended, x = b.only_wanted(attended, x)
    x = b.add(x, output(b, attended, names.out))
    return b.add(x, mlp(b, b.norm(x, names.norms[1]), names.up, names.down))


def norm_last(b: GraphBuilder, x: Value, names: Names, attend: Attend) -> Value:
    """Appends the norm of x plus attention; then that of the feed-forward added (Vaswani et al. 2017)."""
    names = names.of(b.layer)
    attended = attend(b, project(b, x, names.attention, names.qkv))
    attended, x = b.only_wanted(attended, x)
    x = b.norm(b.add(x, output(b, attended, names.out)), names.norms[0])
    return b.norm(b.add(x, mlp(b, x, names.up, names.down)), names.norms[1])


def parallel(b: GraphBuilder, x: Value, names: Names, attend: Attend) -> Value:
    """Appends x plus attention and feed-forward, both of x's norm, or each of its own norm."""
    names = names.of(b.layer)
    first = b.norm(x, names.norms[0])
    second = b.norm(x, names.norms[1]) if len(names.norms) > 1 else first
    attended = attend(b, project(b, first, names.attention, names.qkv))
    attended, second, x = b.only_wanted(attended, second, x)
    both = b.add(output(b, attended, names.out), mlp(b, second, names.up, names.down))
    return b.add(x, both)


Block = Callable[[GraphBuilder, Value, Names, Attend], Value]
"""One of the kinds of layers above."""


def decoder(
    b: GraphBuilder,
    x: Value,
    names: Names,
    attend: Attend,
    last: str,
    block: Block = sequential,
    head: str = "lm_head",
    bias: bool = False,
) -> None:
    """Appends all layers to the embedded x, then the norm `last` and the head."""
    for _ in b.layers():
        x = block(b, x, names, attend)
    b.head(b.norm(x, last), head, bias)
