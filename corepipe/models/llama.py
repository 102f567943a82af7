"""Llama 2 and 3.x, SmolLM2, TinyLlama; the other families of this package differ in their config only."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import Fields, ModelConfig, common
from corepipe.models.layers import GraphBuilder
from corepipe.neuron.graph import Axis, Format, Graph, Value


def configure(fields: Fields) -> ModelConfig:
    """`attention_bias` puts a bias on all four attention linears, `mlp_bias` on the other three."""
    bias = fields.flag("attention_bias")
    return replace(common(fields), qkv_bias=bias, out_bias=bias, mlp_bias=fields.flag("mlp_bias"))


def build(config: ModelConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """The forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed()
    for layer in range(config.num_layers):
        b.layer = layer
        attended = _attention(b, b.norm(x, f"model.layers.{layer}.input_layernorm"))
        if layer + 1 == config.num_layers:  # from here on only the rows whose logits are wanted matter
            attended, x = b.select_rows(attended), b.select_rows(x)
        x = b.add(x, _output(b, attended))
        x = b.add(x, _mlp(b, b.norm(x, f"model.layers.{layer}.post_attention_layernorm")))
    b.layer = config.num_layers
    x = b.norm(x, "model.norm")
    b.linear(x, "lm_head", Axis.VOCAB, config.vocab_size)
    return b.finish(name, fmt, max_positions)


def _attention(b: GraphBuilder, x: Value) -> Value:
    config, heads = b.config, b.config.heads
    prefix = f"model.layers.{b.layer}.self_attn"
    q = b.linear(x, f"{prefix}.q_proj", Axis.Q_HEADS, heads.heads * heads.head_dim, config.qkv_bias)
    k = b.linear(x, f"{prefix}.k_proj", Axis.KV_HEADS, heads.kv_heads * heads.head_dim, config.qkv_bias)
    v = b.linear(x, f"{prefix}.v_proj", Axis.KV_HEADS, heads.kv_heads * heads.head_dim, config.qkv_bias)
    if config.head_norms:
        q, k = b.head_norm(q, f"{prefix}.q_norm"), b.head_norm(k, f"{prefix}.k_norm")
    return b.attention(b.rope(q), b.rope(k), v, config.windows[b.layer])


def _output(b: GraphBuilder, attended: Value) -> Value:
    name = f"model.layers.{b.layer}.self_attn.o_proj"
    return b.linear(attended, name, Axis.HIDDEN, b.config.hidden_size, b.config.out_bias)


def _mlp(b: GraphBuilder, x: Value) -> Value:
    config = b.config
    prefix = f"model.layers.{b.layer}.mlp"
    gate = b.linear(x, f"{prefix}.gate_proj", Axis.FFN, config.ffn_size, config.mlp_bias)
    up = b.linear(x, f"{prefix}.up_proj", Axis.FFN, config.ffn_size, config.mlp_bias)
    return b.linear(
        b.gated(gate, up), f"{prefix}.down_proj", Axis.HIDDEN, config.hidden_size, config.mlp_bias
    )
