"""The names that llama.cpp's converter gives each family's tensors, and the values that it changes.

Names are those of the gguf library's tables; the changes are in llama.cpp's convert_hf_to_gguf.py and its
directory `conversion`.
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
"""Stacks of all experts' matrices, except for the router."""
SPARSE = {**PRE_NORMS, **SEPARATE, **EXPERTS}
SHARED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
SHARED_EXPERTS = {
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
LATENTS = {
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "attn_output": "self_attn.o_proj",
}
"""`attn_kv_b` in older files; newer ones have the matrices of keys and of values instead."""
DBRX_LAYER = {
    "attn_norm": "norm_attn_norm.norm_1",
    "attn_qkv": "norm_attn_norm.attn.Wqkv",
    "attn_output": "norm_attn_norm.attn.out_proj",
    "attn_output_norm": "norm_attn_norm.norm_2",
    "ffn_gate_inp": "ffn.router.layer",
    "ffn_gate_exps": "ffn.experts.mlp.w1",
    "ffn_up_exps": "ffn.experts.mlp.v1",
    "ffn_down_exps": "ffn.experts.mlp.w2",
}
DBRX_TOP = {
    "token_embd": "transformer.wte",
    "output_norm": "transformer.norm_f",
    "output": "lm_head",
}
MAMBA_LAYER = {
    "attn_norm": "norm",
    "ssm_in": "mixer.in_proj",
    "ssm_conv1d": "mixer.conv1d",
    "ssm_norm": "mixer.norm",
    "ssm_out": "mixer.out_proj",
}
MAMBA_WHOLE = {"ssm_a": "mixer.A_log", "ssm_d": "mixer.D", "ssm_dt.bias": "mixer.dt_bias"}
MAMBA_TOP = {
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "output": "lm_head",
}
MAMBA_KEYS = {
    "num_heads": "ssm.time_step_rank",
    "n_groups": "ssm.group_count",
    "state_size": "ssm.state_size",
    "conv_kernel": "ssm.conv_kernel",
    "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
}
GRANITE_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    "ffn_gate_exps": "block_sparse_moe.experts.gate_proj",
    "ffn_up_exps": "block_sparse_moe.experts.up_proj",
    "ffn_down_exps": "block_sparse_moe.output_linear",
}
GRANITE_SHARED = {
    "gate": "shared_mlp.gate_proj",
    "up": "shared_mlp.up_proj",
    "down": "shared_mlp.output_linear",
}
GRANITE_HYBRID = {
    **PRE_NORMS,
    **SEPARATE,
    **GRANITE_EXPERTS,
    **{f"ffn_{part}_shexp": name for part, name in GRANITE_SHARED.items()},
    **{f"ffn_{part}": name for part, name in GRANITE_SHARED.items()},
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
}
"""The feed-forward of every token is a shared expert where there are others."""
GRANITE_HYBRID_KEYS = {
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "mamba_n_heads": "ssm.time_step_rank",
    "mamba_n_groups": "ssm.group_count",
    "mamba_d_state": "ssm.state_size",
    "mamba_d_conv": "ssm.conv_kernel",
}
MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.w1",
    "ffn_up_exps": "block_sparse_moe.experts.w3",
    "ffn_down_exps": "block_sparse_moe.experts.w2",
}
EXPERT_COUNTS = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "norm_topk_prob": "expert_weights_norm",
}
LOCAL_EXPERTS = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
DEEPSEEK_KEYS = {
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "qk_nope_head_dim": "attention.key_length_mla",
    "v_head_dim": "attention.value_length_mla",
}
DBRX_KEYS = {
    "d_model": "embedding_length",
    "n_layers": "block_count",
    "n_heads": "attention.head_count",
    "max_seq_len": "context_length",
    "attn_config.kv_n_heads": "attention.head_count_kv",
    "attn_config.clip_qkv": "attention.clamp_kqv",
    "attn_config.rope_theta": "rope.freq_base",
    "ffn_config.ffn_hidden_size": "feed_forward_length",
    "ffn_config.moe_num_experts": "expert_count",
    "ffn_config.moe_top_k": "expert_used_count",
}
LONG_CONTEXTS = {
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.attn_factor",
}
MULTIPLIERS = {
    "embedding_multiplier": "embedding_scale",
    "attention_multiplier": "attention.scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
"""Granite's factors."""
CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """An architecture of GGUF files.

    model_type: Hugging Face's. layer: GGUF's names after "blk.N." and Hugging Face's after `layers` + "N.",
    both without weight or bias; whole: with them, where these differ. top: names outside layers. keys: of
    config.json (a dot before those of a nested object), and of the metadata after the architecture's name, in
    addition to the usual ones; where `expert_count` is not among them, mixtures are refused. biases: flags of
    config.json, and the name in a layer whose bias shows that they are on.

    partial: heads may be rotated in part. own_heads: the usual keys do not give their sizes. interleaved: the
    rows of the two halves of each query and key head alternate. plus_one: gains hold 1 + w. transposed: names
    in a layer of matrices that Hugging Face has as [in, out].
    """

    model_type: str
    layer: Mapping[str, str] = field(default_factory=lambda: LLAMA)
    top: Mapping[str, str] = field(default_factory=lambda: TOP)
    layers: str = "model.layers."
    whole: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    biases: Mapping[str, str] = field(default_factory=dict)
    partial: bool = False
    own_heads: bool = False
    interleaved: bool = False
    plus_one: bool = False
    transposed: tuple[str, ...] = ()


ALL_BIASES = {"attention_bias": "attn_output", "mlp_bias": "ffn_down"}

GGUF_FAMILIES: Mapping[str, GgufFamily] = MappingProxyType(
    {
        "llama": GgufFamily(
            "llama",
            {**LLAMA, **MIXTRAL},
            keys=LOCAL_EXPERTS,
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
            keys=MULTIPLIERS,
            biases=ALL_BIASES,
            interleaved=True,
        ),
        "granitemoe": GgufFamily(
            "granitemoe",
            {**PRE_NORMS, **SEPARATE, **GRANITE_EXPERTS},
            keys={**MULTIPLIERS, **LOCAL_EXPERTS},
            biases={"attention_bias": "attn_output"},
            interleaved=True,
        ),
        "granitehybrid": GgufFamily(
            "granitemoehybrid",
            GRANITE_HYBRID,
            whole={"ssm_a": "mamba.A_log", "ssm_d": "mamba.D", "ssm_dt.bias": "mamba.dt_bias"},
            keys={**MULTIPLIERS, **LOCAL_EXPERTS, **GRANITE_HYBRID_KEYS},
            biases={
                "attention_bias": "attn_output",
                "mamba_proj_bias": "ssm_in",
                "mamba_conv_bias": "ssm_conv1d",
            },
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
        "phimoe": GgufFamily(
            "phimoe",
            {**PRE_NORMS, **SEPARATE, **MIXTRAL},
            keys={**LOCAL_EXPERTS, **LONG_CONTEXTS},
            biases={"attention_bias": "attn_output"},
        ),
        "dbrx": GgufFamily("dbrx", DBRX_LAYER, DBRX_TOP, layers="transformer.blocks.", keys=DBRX_KEYS),
        "gpt-oss": GgufFamily(
            "gpt_oss",
            {
                **SEPARATE,
                **EXPERTS,
                "attn_norm": "input_layernorm",
                "post_attention_norm": "post_attention_layernorm",
                "ffn_gate_inp": "mlp.router",
            },
            whole={"attn_sinks.weight": "self_attn.sinks"},
            keys=LOCAL_EXPERTS,
            biases={"attention_bias": "attn_q"},
        ),
        "deepseek2": GgufFamily(
            "deepseek_v2",
            {**PRE_NORMS, **LATENTS, **GATED, **EXPERTS, **SHARED_EXPERTS},
            whole={"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
            keys=DEEPSEEK_KEYS,
            biases={"attention_bias": "attn_kv_a_mqa"},
            own_heads=True,
        ),
        "mamba2": GgufFamily(
            "mamba2",
            MAMBA_LAYER,
            MAMBA_TOP,
            layers="backbone.layers.",
            whole=MAMBA_WHOLE,
            keys=MAMBA_KEYS,
            biases={"use_bias": "ssm_in", "use_conv_bias": "ssm_conv1d"},
            own_heads=True,
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
            keys=LONG_CONTEXTS,
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
"""Families by `general.architecture`. llama.cpp stores Mistral and Mixtral as llama, OLMo 3 as olmo2, and
DeepSeek-V2 and V3 as deepseek2."""
