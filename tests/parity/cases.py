"""Small models of every computed family, with odd shapes, whose logits are compared with transformers'.

Heads of 24 and 80 elements, one key/value head, feed-forwards that are no multiple of 64, tied and untied
heads, biases and none, windows that are shorter than the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

VOCAB = 131
PROMPT = 300
POSITIONS = 512

IDS: dict[str, object] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


@dataclass(frozen=True)
class Case:
    """A configuration in transformers' fields, and the class that computes it."""

    name: str
    config_class: str
    options: dict[str, object] = field(default_factory=dict)
    model_class: str = "AutoModelForCausalLM"
    prompt: int = PROMPT
    attention: str = "eager"


def llama_like(hidden: int, heads: int, kv_heads: int, **changes: object) -> dict[str, object]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "intermediate_size": 104,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": POSITIONS,
        **IDS,
        **changes,
    }


def gpt2_like(hidden: int, heads: int, **changes: object) -> dict[str, object]:
    return {
        "vocab_size": VOCAB,
        "n_embd": hidden,
        "n_layer": 2,
        "n_head": heads,
        "n_positions": POSITIONS,
        **IDS,
        **changes,
    }


def classic(hidden: int, heads: int, **changes: object) -> dict[str, object]:
    options = llama_like(hidden, heads, heads, **changes)
    return {key: value for key, value in options.items() if key != "num_key_value_heads"}


def four_times(hidden: int, heads: int, **changes: object) -> dict[str, object]:
    """Returns the fields of a model whose feed-forward width follows from the model's."""
    options = classic(hidden, heads, **changes)
    return {key: value for key, value in options.items() if key != "intermediate_size"}


def mamba(hidden: int, heads: int, groups: int, **changes: object) -> dict[str, object]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "num_hidden_layers": 2,
        "num_heads": heads,
        "head_dim": 2 * hidden // heads,
        "n_groups": groups,
        "state_size": 27,
        "chunk_size": 64,
        **IDS,
        **changes,
    }


def hybrid(groups: int, **changes: object) -> dict[str, object]:
    """A hybrid of Mamba-2 and attention, with heads of 24 elements of which half are rotated."""
    return llama_like(
        96,
        4,
        2,
        mamba_n_heads=12,
        mamba_n_groups=groups,
        mamba_d_state=27,
        mamba_chunk_size=64,
        **{"max_position_embeddings": 4 * POSITIONS, **changes},
    )


NEO = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "num_heads": 4,
    "num_layers": 3,
    "attention_types": [[["local", "global"], 1], [["local"], 1]],
    "window_size": 40,
    "max_position_embeddings": POSITIONS,
    **IDS,
}
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
LONG_ROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + i / 20 for i in range(12)],
    "long_factor": [1.5 + i for i in range(12)],
}
GEMMA3 = llama_like(
    96,
    4,
    2,
    head_dim=24,
    num_hidden_layers=3,
    sliding_window=40,
    layer_types=ALTERNATING,
    query_pre_attn_scalar=24,
    rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
)
DBRX = {
    "vocab_size": VOCAB,
    "d_model": 96,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": POSITIONS,
    **IDS,
}
SIGHT = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 128,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
LONG_PHIMOE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + i / 20 for i in range(12)],
    "long_factor": [1.5 + i for i in range(12)],
    "short_mscale": 1.1,
    "long_mscale": 1.2,
    "original_max_position_embeddings": POSITIONS,
}
GRANITE = {
    "embedding_multiplier": 6.0,
    "logits_scaling": 3.0,
    "residual_multiplier": 0.3,
    "attention_multiplier": 0.07,
}

LATENTS = {
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "moe_intermediate_size": 40,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
}
LONG_LATENTS = {**YARN, "truncate": True, "rope_theta": 10000.0, "mscale": 0.707, "mscale_all_dim": 1.2}

CASES = (
    Case("llama", "LlamaConfig", llama_like(160, 2, 1, attention_bias=True, mlp_bias=True)),
    Case("mamba2", "Mamba2Config", mamba(80, 5, 1, tie_word_embeddings=True)),
    Case(
        "mamba2-groups",
        "Mamba2Config",
        mamba(96, 12, 4, use_bias=True, use_conv_bias=False, conv_kernel=3, time_step_limit=(0.3, 0.9)),
    ),
    Case("bamba", "BambaConfig", hybrid(2, num_hidden_layers=3, attn_layer_indices=[1])),
    Case(
        "bamba-biases",
        "BambaConfig",
        hybrid(
            1,
            num_hidden_layers=3,
            attn_layer_indices=[0, 2],
            attention_bias=True,
            mlp_bias=True,
            mamba_proj_bias=True,
            mamba_conv_bias=False,
            mamba_d_conv=3,
            time_step_limit=(0.3, 0.9),
            tie_word_embeddings=True,
        ),
    ),
    Case("mistral", "MistralConfig", llama_like(96, 4, 2, head_dim=80, sliding_window=40)),
    Case("qwen2", "Qwen2Config", llama_like(96, 4, 1, tie_word_embeddings=True)),
    Case("qwen3", "Qwen3Config", llama_like(96, 4, 2, head_dim=24, attention_bias=True)),
    Case("bloom", "BloomConfig", {**four_times(120, 5), "n_layer": 2, "n_head": 5, "seq_length": POSITIONS}),
    Case("cohere", "CohereConfig", llama_like(160, 2, 1, intermediate_size=200, attention_bias=True)),
    Case("cohere-normed", "CohereConfig", llama_like(96, 4, 2, use_qk_norm=True)),
    Case(
        "cohere2",
        "Cohere2Config",
        llama_like(96, 4, 2, num_hidden_layers=3, sliding_window=40, layer_types=ALTERNATING),
    ),
    Case(
        "dbrx",
        "DbrxConfig",
        {
            **DBRX,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.75, "rope_theta": 500000.0},
            "ffn_config": {"hidden_size": 96, "ffn_hidden_size": 104, "moe_num_experts": 5, "moe_top_k": 3},
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        },
    ),
    Case(
        "dbrx-shares",
        "DbrxConfig",
        {
            **DBRX,
            "attn_config": {"kv_n_heads": 1, "clip_qkv": 8, "rope_theta": 10000.0},
            "ffn_config": {
                "hidden_size": 96,
                "ffn_hidden_size": 72,
                "moe_num_experts": 3,
                "moe_top_k": 2,
                "moe_normalize_expert_weights": None,
            },
        },
    ),
    Case(
        "deepseek_v2",
        "DeepseekV2Config",
        llama_like(
            96,
            3,
            3,
            **LATENTS,
            q_lora_rank=None,
            n_routed_experts=11,
            num_experts_per_tok=3,
            n_shared_experts=2,
        ),
    ),
    Case(
        "deepseek_v2-groups",
        "DeepseekV2Config",
        llama_like(
            160,
            5,
            5,
            **LATENTS,
            q_lora_rank=56,
            n_routed_experts=15,
            num_experts_per_tok=4,
            n_shared_experts=1,
            topk_method="group_limited_greedy",
            n_group=5,
            topk_group=2,
            routed_scaling_factor=3.5,
            attention_bias=True,
            rope_parameters=LONG_LATENTS,
        ),
    ),
    Case(
        "deepseek_v3",
        "DeepseekV3Config",
        llama_like(
            96,
            4,
            4,
            **LATENTS,
            q_lora_rank=56,
            n_routed_experts=21,
            num_experts_per_tok=5,
            n_group=7,
            topk_group=3,
            rope_parameters=LONG_LATENTS,
        ),
    ),
    Case(
        "deepseek_v3-plain",
        "DeepseekV3Config",
        llama_like(
            96,
            2,
            2,
            **LATENTS,
            q_lora_rank=None,
            n_routed_experts=7,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            n_shared_experts=2,
            norm_topk_prob=False,
            routed_scaling_factor=1.0,
            rope_interleave=False,
            attention_bias=True,
            tie_word_embeddings=True,
        ),
    ),
    Case("falcon", "FalconConfig", four_times(96, 4, multi_query=True, ffn_hidden_size=200)),
    Case(
        "falcon-new",
        "FalconConfig",
        four_times(160, 2, new_decoder_architecture=True, num_kv_heads=1, bias=True),
    ),
    Case(
        "falcon-one-norm",
        "FalconConfig",
        four_times(
            96,
            4,
            tie_word_embeddings=False,
            new_decoder_architecture=True,
            num_kv_heads=2,
            num_ln_in_parallel_attn=1,
        ),
    ),
    Case(
        "falcon-sequential",
        "FalconConfig",
        four_times(96, 4, multi_query=False, parallel_attn=False, bias=True, alibi=True),
        # transformers has products of slopes and positions in bf16, which has no odd numbers from 256 on, and
        # its eager attention adds them twice, the second time with the mask
        prompt=250,
        attention="sdpa",
    ),
    Case("gemma", "GemmaConfig", llama_like(96, 2, 1, head_dim=80)),
    Case(
        "gemma2",
        "Gemma2Config",
        llama_like(96, 4, 2, head_dim=24, num_hidden_layers=3, sliding_window=40, query_pre_attn_scalar=32),
    ),
    Case("gemma3_text", "Gemma3TextConfig", GEMMA3),
    Case(
        "gemma3",
        "Gemma3Config",
        {"text_config": GEMMA3, "vision_config": SIGHT, "mm_tokens_per_image": 4, "image_token_index": 130},
        "AutoModelForImageTextToText",
    ),
    Case("glm4", "Glm4Config", llama_like(96, 4, 1, head_dim=24)),
    Case("gpt2", "GPT2Config", gpt2_like(96, 4, n_inner=200)),
    Case("gpt2-untied", "GPT2Config", gpt2_like(160, 2, tie_word_embeddings=False)),
    Case("gpt_bigcode", "GPTBigCodeConfig", gpt2_like(96, 4)),
    Case("gpt_bigcode-heads", "GPTBigCodeConfig", gpt2_like(96, 4, multi_query=False)),
    Case("gpt_neo", "GPTNeoConfig", NEO),
    Case("gpt_neox", "GPTNeoXConfig", classic(160, 2)),
    Case(
        "gpt_neox-sequential",
        "GPTNeoXConfig",
        classic(
            96, 4, use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True, rotary_pct=0.5
        ),
    ),
    Case(
        "gpt_oss",
        "GptOssConfig",
        llama_like(
            96,
            4,
            2,
            head_dim=24,
            num_hidden_layers=3,
            num_local_experts=7,
            num_experts_per_tok=3,
            sliding_window=40,
            layer_types=ALTERNATING,
            rope_parameters={**YARN, "rope_theta": 150000.0},
        ),
    ),
    Case(  # experts this narrow have what exceeds the bounds of their activations
        "gpt_oss-clamped",
        "GptOssConfig",
        llama_like(
            160,
            2,
            1,
            head_dim=80,
            intermediate_size=12,
            num_local_experts=5,
            num_experts_per_tok=2,
            sliding_window=40,
            attention_bias=False,
            tie_word_embeddings=True,
        ),
    ),
    Case("gptj", "GPTJConfig", gpt2_like(96, 4, rotary_dim=16)),
    Case("granite", "GraniteConfig", llama_like(96, 4, 1, **GRANITE, attention_bias=True)),
    Case(
        "granitemoe",
        "GraniteMoeConfig",
        llama_like(96, 4, 1, **GRANITE, num_local_experts=9, num_experts_per_tok=4, tie_word_embeddings=True),
    ),
    Case(
        "granitemoehybrid",
        "GraniteMoeHybridConfig",
        hybrid(
            2,
            **GRANITE,
            num_hidden_layers=4,
            layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"],
            num_local_experts=9,
            num_experts_per_tok=4,
            shared_intermediate_size=72,
        ),
    ),
    Case(
        "granitemoehybrid-dense",
        "GraniteMoeHybridConfig",
        hybrid(
            1,
            **GRANITE,
            num_hidden_layers=3,
            layer_types=["full_attention", "linear_attention", "linear_attention"],
            position_embedding_type="rope",
            num_local_experts=0,
            shared_intermediate_size=104,
            attention_bias=True,
            mamba_proj_bias=True,
            mamba_conv_bias=False,
            mamba_d_conv=3,
            time_step_limit=(0.3, 0.9),
            tie_word_embeddings=True,
        ),
    ),
    Case(
        "llama4_text",
        "Llama4TextConfig",
        llama_like(
            96,
            4,
            2,
            head_dim=24,
            intermediate_size_mlp=72,
            num_hidden_layers=4,
            attention_chunk_size=40,
            interleave_moe_layer_step=2,
            num_local_experts=7,
            num_experts_per_tok=2,
            floor_scale=16,
            attn_scale=0.5,
            rope_parameters=LLAMA3,
        ),
    ),
    Case(  # chunks of more than a block of keys, in a layer that knows no positions, too
        "llama4_text-plain",
        "Llama4TextConfig",
        llama_like(
            160,
            2,
            1,
            head_dim=80,
            num_hidden_layers=3,
            attention_chunk_size=70,
            layer_types=["chunked_attention", "full_attention", "chunked_attention"],
            no_rope_layers=[1, 0, 0],
            moe_layers=[0, 2],
            intermediate_size_mlp=200,
            num_local_experts=5,
            use_qk_norm=False,
            attn_temperature_tuning=False,
            attention_bias=True,
            tie_word_embeddings=True,
        ),
    ),
    Case(
        "mixtral",
        "MixtralConfig",
        llama_like(96, 4, 2, num_local_experts=7, num_experts_per_tok=2, sliding_window=40),
    ),
    Case(
        "mixtral-one",
        "MixtralConfig",
        llama_like(160, 2, 1, num_local_experts=1, num_experts_per_tok=1, tie_word_embeddings=True),
    ),
    Case("mpt", "MptConfig", {**gpt2_like(120, 5), "d_model": 120, "n_heads": 5, "n_layers": 2}),
    Case(
        "mpt-clipped",
        "MptConfig",
        {
            **gpt2_like(120, 5),
            "d_model": 120,
            "n_heads": 5,
            "n_layers": 2,
            "attn_config": {"clip_qkv": 0.7},
        },
    ),
    Case("olmo", "OlmoConfig", llama_like(96, 4, 2)),
    Case("olmo-clipped", "OlmoConfig", llama_like(160, 2, 1, clip_qkv=0.6)),
    Case("olmo2", "Olmo2Config", llama_like(96, 4, 2)),
    Case(
        "olmo3",
        "Olmo3Config",
        llama_like(
            96,
            4,
            2,
            num_hidden_layers=3,
            sliding_window=40,
            layer_types=ALTERNATING,
            rope_scaling={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "attention_factor": 1.2,
            },
        ),
    ),
    Case("olmoe", "OlmoeConfig", llama_like(96, 4, 2, num_experts=13, num_experts_per_tok=3)),
    Case(
        "olmoe-all",
        "OlmoeConfig",
        llama_like(96, 4, 4, num_experts=5, num_experts_per_tok=5, norm_topk_prob=True, attention_bias=True),
    ),
    Case(
        "olmoe-clipped",
        "OlmoeConfig",
        llama_like(96, 4, 2, num_experts=6, num_experts_per_tok=2, clip_qkv=0.7, tie_word_embeddings=True),
    ),
    Case("opt", "OPTConfig", {**classic(96, 4), "ffn_dim": 200}),
    Case(
        "opt-350m",
        "OPTConfig",
        {**classic(96, 4), "ffn_dim": 104, "word_embed_proj_dim": 72, "do_layer_norm_before": False},
    ),
    Case("phi", "PhiConfig", classic(160, 2)),
    Case("phi-normed", "PhiConfig", classic(96, 4, qk_layernorm=True)),
    Case("phi3", "Phi3Config", llama_like(160, 2, 1, sliding_window=40)),
    Case(
        "phi3-long",
        "Phi3Config",
        llama_like(96, 4, 2, rope_parameters=LONG_ROPE, original_max_position_embeddings=128),
    ),
    Case(
        "phi3-short",
        "Phi3Config",
        llama_like(96, 4, 2, rope_parameters=LONG_ROPE, original_max_position_embeddings=512),
    ),
    Case(
        "qwen2_moe",
        "Qwen2MoeConfig",
        llama_like(
            96,
            4,
            2,
            num_hidden_layers=3,
            num_experts=11,
            num_experts_per_tok=3,
            moe_intermediate_size=40,
            shared_expert_intermediate_size=72,
            use_sliding_window=True,
            sliding_window=40,
            layer_types=ALTERNATING,
            mlp_only_layers=[1],
        ),
    ),
    Case(
        "qwen3_moe",
        "Qwen3MoeConfig",
        llama_like(
            96,
            4,
            2,
            head_dim=24,
            num_hidden_layers=4,
            num_experts=33,
            num_experts_per_tok=4,
            moe_intermediate_size=40,
            norm_topk_prob=True,
            decoder_sparse_step=2,
            use_sliding_window=True,
            sliding_window=40,
        ),
    ),
    Case(
        "phimoe",
        "PhimoeConfig",
        llama_like(
            96,
            4,
            2,
            num_local_experts=7,
            sliding_window=40,
            attention_bias=True,
            lm_head_bias=True,
            router_jitter_noise=0.1,
            rope_parameters={**LONG_PHIMOE, "rope_theta": 10000.0},
        ),
    ),
    Case("phimoe-plain", "PhimoeConfig", llama_like(160, 2, 1, num_local_experts=3)),
    Case("smollm3", "SmolLM3Config", llama_like(96, 4, 2, num_hidden_layers=4)),
    Case("stablelm", "StableLmConfig", llama_like(160, 2, 1, use_qkv_bias=True)),
    Case("stablelm-normed", "StableLmConfig", llama_like(96, 4, 2, qk_layernorm=True)),
    Case(
        "stablelm-parallel",
        "StableLmConfig",
        llama_like(160, 2, 1, qk_layernorm=True, use_parallel_residual=True),
    ),
    Case("starcoder2", "Starcoder2Config", llama_like(160, 2, 1, sliding_window=40)),
    Case(
        "starcoder2-plain",
        "Starcoder2Config",
        llama_like(96, 4, 2, use_bias=False, tie_word_embeddings=False),
    ),
)
