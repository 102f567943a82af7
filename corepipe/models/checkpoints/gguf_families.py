"""How llama.cpp's converter files each family: under which names, and what it changes on the way.

Names are those of the gguf library's tables; what is changed is in llama.cpp's convert_hf_to_gguf.py and
its directory `conversion`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
SEPARATE = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
PRE_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
POST_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
SANDWICH = {"attn_norm": "input_layernorm", "ffn_norm": "pre_feedforward_layernorm", **POST_NORMS}
LLAMA = {**PRE_NORMS, **SEPARATE, **GATED}
TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
GPT2_TOP = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
GPT2_LAYER = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
GPT2_KEYS = {
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "n_inner": "feed_forward_length",
    "n_positions": "context_length",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}
EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
"""Each a stack of all experts' matrices, but for the router."""
SPARSE = {**PRE_NORMS, **SEPARATE, **EXPERTS}
SHARED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.w1",
    "ffn_up_exps": "block_sparse_moe.experts.w3",
    "ffn_down_exps": "block_sparse_moe.experts.w2",
}
EXPERT_COUNTS = {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """An architecture of GGUF files.

    model_type: Hugging Face's.  layer: GGUF's names after "blk.N." and Hugging Face's after `layers` + "N.";
    top: the other ones.  keys: of config.json, and of the metadata after the architecture's name, beside the
    usual ones; where `expert_count` is none of them, mixtures are refused.  biases: flags of config.json, and
    the name in a layer whose bias says that they are on.
    partial: heads may be rotated in part.  interleaved: the rows of the two halves of each query and key head
    take turns.  plus_one: gains hold 1 + w.  transposed: names in a layer of what Hugging Face has as
    [in, out].
    """

    model_type: str
    layer: Mapping[str, str] = field(default_factory=lambda: LLAMA)
    top: Mapping[str, str] = field(default_factory=lambda: TOP)
    layers: str = "model.layers."
    keys: Mapping[str, str] = field(default_factory=dict)
    biases: Mapping[str, str] = field(default_factory=dict)
    partial: bool = False
    interleaved: bool = False
    plus_one: bool = False
    transposed: tuple[str, ...] = ()


ALL_BIASES = {"attention_bias": "attn_output", "mlp_bias": "ffn_down"}

GGUF_FAMILIES: Mapping[str, GgufFamily] = MappingProxyType(
    {
        "llama": GgufFamily(
            "llama",
            {**LLAMA, **MIXTRAL},
            keys={"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
            biases=ALL_BIASES,
            interleaved=True,
        ),
        "qwen2": GgufFamily("qwen2", biases={**ALL_BIASES, "qkv_bias": "attn_q"}),
        "qwen3": GgufFamily("qwen3", {**LLAMA, **HEAD_NORMS}, biases=ALL_BIASES),
        "gemma": GgufFamily("gemma", plus_one=True),
        "gemma2": GgufFamily("gemma2", {**LLAMA, **SANDWICH}, keys=CAPS, plus_one=True),
        "gemma3": GgufFamily(
            "gemma3_text",
            {**LLAMA, **SANDWICH, **HEAD_NORMS},
            keys={**CAPS, "rope_local_base_freq": "rope.freq_base_swa"},
            plus_one=True,
        ),
        "granite": GgufFamily(
            "granite",
            keys={
                "embedding_multiplier": "embedding_scale",
                "attention_multiplier": "attention.scale",
                "residual_multiplier": "residual_scale",
                "logits_scaling": "logit_scale",
            },
            biases=ALL_BIASES,
            interleaved=True,
        ),
        "olmo2": GgufFamily("olmo2", {**SEPARATE, **GATED, **HEAD_NORMS, **POST_NORMS}),
        "olmoe": GgufFamily("olmoe", {**SPARSE, **HEAD_NORMS}, keys=EXPERT_COUNTS),
        "qwen2moe": GgufFamily(
            "qwen2_moe",
            {**SPARSE, **SHARED_EXPERT},
            keys={
                **EXPERT_COUNTS,
                "moe_intermediate_size": "expert_feed_forward_length",
                "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
            },
            biases={"qkv_bias": "attn_q"},
        ),
        "qwen3moe": GgufFamily(
            "qwen3_moe",
            {**SPARSE, **HEAD_NORMS},
            keys={**EXPERT_COUNTS, "moe_intermediate_size": "expert_feed_forward_length"},
            biases=ALL_BIASES,
        ),
        "smollm3": GgufFamily("smollm3", biases=ALL_BIASES, interleaved=True),
        "stablelm": GgufFamily(
            "stablelm",
            keys={
                "layer_norm_eps": "attention.layer_norm_epsilon",
                "use_parallel_residual": "use_parallel_residual",
            },
            biases={"use_qkv_bias": "attn_q"},
            partial=True,
        ),
        "starcoder2": GgufFamily(
            "starcoder2",
            {**PRE_NORMS, **SEPARATE, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
            keys={"norm_epsilon": "attention.layer_norm_epsilon"},
            biases={"use_bias": "attn_q"},
        ),
        "phi3": GgufFamily(
            "phi3",
            {
                **PRE_NORMS,
                "attn_qkv": "self_attn.qkv_proj",
                "attn_output": "self_attn.o_proj",
                "ffn_up": "mlp.gate_up_proj",
                "ffn_down": "mlp.down_proj",
            },
            keys={"original_max_position_embeddings": "rope.scaling.original_context_length"},
            partial=True,
        ),
        "gpt2": GgufFamily(
            "gpt2",
            GPT2_LAYER,
            GPT2_TOP,
            layers="transformer.h.",
            keys=GPT2_KEYS,
            transposed=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
        ),
    }
)
"""By `general.architecture`.  llama.cpp files Mistral and Mixtral under llama, and OLMo 3 under olmo2."""
