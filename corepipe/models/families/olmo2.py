"""OLMo 2: norms after the blocks instead of before them, and over all of the queries and of the keys."""

from __future__ import annotations

from corepipe.models.config import ModelConfig
from corepipe.models.families import llama
from corepipe.models.families.blocks import clipped, project
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.neuron.values import Value

NORMS = llama.Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm")


def configure(fields: Fields) -> ModelConfig:
    return llama.configure(fields.defaulting("rms_norm_eps", 1e-5))


def build(b: GraphBuilder, _config: ModelConfig) -> None:
    b.head(llama.decoder(b, b.embed(), attend=normed_attention, norms=NORMS))


def normed_attention(b: GraphBuilder, x: Value) -> Value:
    """Appends rotary attention with one norm over the queries of all heads, and one over the keys."""
    prefix = f"model.layers.{b.layer}.self_attn"
    q, k, v = project(b, x, prefix)
    q, k = b.norm(q, f"{prefix}.q_norm"), b.norm(k, f"{prefix}.k_norm")
    q, k, v = clipped(b, q, k, v)
    return b.attention(b.rope(q), b.rope(k), v)
