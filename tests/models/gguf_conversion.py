"""Metadata and tensors of GGUF files as llama.cpp's converter writes them, by the keys of a config.json.

Names are looked up in the gguf library's tables; changes of keys and tensors follow llama.cpp's `conversion`,
class by class, and share no code with the reader of the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import log
from typing import Any

import gguf
import numpy as np

Config = dict[str, Any]
Named = Iterator[tuple[str, np.ndarray]]

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "granite": "granite",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    "phi3": "phi3",
    "gpt2": "gpt2",
    "mixtral": "llama",
    "olmoe": "olmoe",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "phimoe": "phimoe",
    "dbrx": "dbrx",
    "granitemoe": "granitemoe",
    "granitemoehybrid": "granitehybrid",
    "gpt_oss": "gpt-oss",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "mamba2": "mamba2",
}
USUAL = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "expert_used_count": "num_experts_per_tok",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "vocab_size": "vocab_size",
}
SCALING = {
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.yarn_attn_factor": "attention_factor",
}


def interleave_halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Permutes q and k as LlamaModel does."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
QWEN = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
RENAMED: dict[str, dict[str, str]] = {
    "llama": {"attention.sliding_window": "sliding_window"},
    "gemma2": {
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    "granite": GRANITE,
    "granitemoe": GRANITE,
    "granitehybrid": {
        **GRANITE,
        "expert_shared_feed_forward_length": "shared_intermediate_size",
        "ssm.conv_kernel": "mamba_d_conv",
        "ssm.state_size": "mamba_d_state",
        "ssm.group_count": "mamba_n_groups",
        "ssm.time_step_rank": "mamba_n_heads",
    },
    "stablelm": {
        "attention.layer_norm_epsilon": "layer_norm_eps",
        "use_parallel_residual": "use_parallel_residual",
    },
    "starcoder2": {"attention.layer_norm_epsilon": "norm_epsilon"},
    "gpt2": {
        "context_length": "n_positions",
        "embedding_length": "n_embd",
        "feed_forward_length": "n_inner",
        "attention.head_count": "n_head",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
    },
    "qwen2moe": QWEN,
    "qwen3moe": QWEN,
    "gpt-oss": {
        "attention.sliding_window": "sliding_window",
        "expert_feed_forward_length": "intermediate_size",
    },
    "dbrx": {
        "context_length": "max_seq_len",
        "embedding_length": "d_model",
        "feed_forward_length": "ffn_config.ffn_hidden_size",
        "attention.head_count": "n_heads",
        "attention.head_count_kv": "attn_config.kv_n_heads",
        "rope.freq_base": "attn_config.rope_theta",
        "expert_count": "ffn_config.moe_num_experts",
        "expert_used_count": "ffn_config.moe_top_k",
    },
    "mamba2": {
        "embedding_length": "hidden_size",
        "ssm.conv_kernel": "conv_kernel",
        "ssm.state_size": "state_size",
        "ssm.time_step_rank": "num_heads",
        "ssm.group_count": "n_groups",
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    },
}
"""The keys of an architecture's files that are a config's under other names."""
ROTATED = ("llama", "stablelm", "granite", "granitemoe", "granitehybrid", "phi3", "phimoe")
"""Architectures whose files have the number of rotated elements."""


def metadata(arch: str, config: Config, latents: bool) -> Config:
    """Returns TextModel.set_gguf_parameters, and what the classes add."""
    found: Config = {"block_count": layers_of(config)}
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    if arch not in ("dbrx", "mamba2", "gpt2"):
        found |= {ours: config.get(theirs) for ours, theirs in USUAL.items()}
        found["expert_count"] = config.get("num_local_experts") or config.get("num_experts")
        found["rope.freq_base"] = rope["rope_theta"]
        if rope["rope_type"] in ("linear", "yarn"):
            found["rope.scaling.type"] = rope["rope_type"]
            found |= {ours: rope.get(key) for ours, key in SCALING.items()}
    if arch in ROTATED:
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        found["rope.dimension_count"] = int(width * rope.get("partial_rotary_factor", 1))
    for ours, theirs in RENAMED.get(arch, {}).items():
        section, _, key = theirs.rpartition(".")
        found[ours] = (config[section] if section else config).get(key)
    return found | computed(arch, config, latents)


def layers_of(config: Config) -> int:
    return int(config.get("n_layers") or config.get("n_layer") or config["num_hidden_layers"])


def computed(arch: str, config: Config, latents: bool) -> Config:
    """Returns the keys that are no key of a config."""
    match arch:
        case "gemma3" | "olmo2" if config.get("sliding_window") is not None:  # an entry for each layer
            pattern = [kind == "sliding_attention" for kind in config["layer_types"]]
            window = config["sliding_window"]
            return {"attention.sliding_window": window, "attention.sliding_window_pattern": pattern}
        case "granitehybrid":  # Mamba's layers have no key/value heads, and turn rotation off
            kinds, kv = config["layer_types"], config["num_key_value_heads"]
            return {
                "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
                "attention.head_count_kv": [kv if kind == "full_attention" else 0 for kind in kinds],
                "rope.scaling.finetuned": False,
                "context_length": 2**20,
            }
        case "phi3" | "phimoe":  # a window of 0 is none
            trained = config["original_max_position_embeddings"]
            stretch = config["max_position_embeddings"] / trained
            return {
                "rope.scaling.original_context_length": trained,
                "rope.scaling.attn_factor": (1 + log(max(stretch, 1)) / log(trained)) ** 0.5,
                "attention.sliding_window": config["sliding_window"] or 0,
            }
        case "dbrx":
            clip = float(config["attn_config"]["clip_qkv"])
            return {"attention.clamp_kqv": clip, "attention.layer_norm_epsilon": 1e-5}
        case "mamba2":
            return {
                "context_length": 2**20,
                "feed_forward_length": 0,
                "attention.head_count": 0,
                "ssm.inner_size": config["expand"] * config["hidden_size"],
            }
        case "deepseek2":
            return _deepseek(config, latents)
    return {}


def _deepseek(config: Config, latents: bool) -> Config:
    """Returns DeepSeek's keys: V3 writes its sigmoid; that weights are shares is written where it is so."""
    key = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    rank, value = config["kv_lora_rank"], config["v_head_dim"]
    scale = config["rope_parameters"].get("mscale_all_dim")
    found = {
        "leading_dense_block_count": config["first_k_dense_replace"],
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": rank,
        "attention.head_count_kv": 1 if latents else config["num_attention_heads"],
        "attention.key_length": rank + config["qk_rope_head_dim"] if latents else key,
        "attention.value_length": rank if latents else value,
        "attention.key_length_mla": key if latents else None,
        "attention.value_length_mla": value if latents else None,
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_count": config["n_routed_experts"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_weights_norm": config.get("norm_topk_prob") or None,
        "rope.dimension_count": config["qk_rope_head_dim"],
        "rope.scaling.yarn_log_multiplier": scale and 0.1 * scale,
    }
    return found | ({"expert_gating_func": 2} if config["model_type"] == "deepseek_v3" else {})


def factors(config: Config) -> Named:
    """Yields the divisors of rotary frequencies that a file has as tensors."""
    rope = config.get("rope_parameters") or {}
    for length in ("long", "short"):
        if f"{length}_factor" in rope:
            yield f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], np.float32)
    if rope.get("rope_type") == "llama3":
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        frequencies = rope["rope_theta"] ** -(np.arange(0, width, 2) / width)
        turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        yield "rope_freqs.weight", (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def tensors(arch: str, config: Config, original: dict[str, np.ndarray], latents: bool) -> Named:
    """Returns the tensors of a file, under its names, for every tensor of a directory."""
    number = next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    blocks = layers_of(config)
    table = gguf.get_tensor_name_map(number, blocks)
    change = CHANGES.get(arch, _as_it_is)
    for name, values in _stacked(original):
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        if layer is not None and int(layer[1]) >= blocks:
            continue  # further tokens
        if name.endswith("kv_b_proj.weight") and not latents:
            yield f"blk.{layer[1]}.attn_kv_b.weight", values
            continue
        for changed, new in change(config, name, values):
            ours = changed if changed.startswith("blk.") else table.get_name(changed, (".weight", ".bias"))
            assert ours is not None, changed
            yield ours, new


def take_mxfp4(original: dict[str, np.ndarray]) -> Named:
    """Takes out gpt-oss's packed experts: of 32 values the first 16 are lower halves of bytes."""
    for name in [name for name in original if name.endswith("_blocks")]:
        blocks, scales = original.pop(name), original.pop(name.replace("_blocks", "_scales"))
        numbers = np.stack((blocks & 15, blocks >> 4), axis=-1).reshape(*scales.shape, 32)
        halves = numbers[..., :16] | numbers[..., 16:] << 4
        rows = np.concatenate((scales[..., None], halves), axis=-1).reshape(*scales.shape[:2], -1)
        layer = name.split(".")[2]
        if "down_proj" in name:
            yield f"blk.{layer}.ffn_down_exps.weight", rows
        else:
            yield f"blk.{layer}.ffn_gate_exps.weight", np.ascontiguousarray(rows[:, ::2])
            yield f"blk.{layer}.ffn_up_exps.weight", np.ascontiguousarray(rows[:, 1::2])


def _stacked(original: dict[str, np.ndarray]) -> Named:
    """Stacks an expert's matrices, which directories have one by one, in one tensor a kind."""
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, values in original.items():
        expert = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+\.weight)", name)
        if expert is None:
            yield name, values
        else:
            stacks.setdefault(f"{expert[1]}.{expert[3]}", {})[int(expert[2])] = values
    for name, parts in stacks.items():
        yield name, np.stack([parts[i] for i in range(len(parts))])


def _as_it_is(_config: Config, name: str, values: np.ndarray) -> Named:
    yield name, values


def _llama_tensor(config: Config, name: str, values: np.ndarray) -> Named:
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    found = heads.get(name.split(".")[-2])
    yield name, values if found is None else interleave_halves(values, found)


def _qwen_tensor(_config: Config, name: str, values: np.ndarray) -> Named:
    """Returns a matrix of one row as a vector."""
    yield name, values[0] if name.endswith("shared_expert_gate.weight") else values


def _gemma_tensor(_config: Config, name: str, values: np.ndarray) -> Named:
    yield name, values + np.float32(name.endswith("norm.weight"))


def _gpt2_tensor(_config: Config, name: str, values: np.ndarray) -> Named:
    turned = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
    yield name, values.T if turned else values


def _granite_tensor(config: Config, name: str, values: np.ndarray) -> Named:
    if not name.endswith("input_linear.weight"):
        yield from _llama_tensor(config, name, values)
        return
    layer = name.split(".")[2]
    for part, half in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
        yield f"blk.{layer}.ffn_{part}_exps.weight", half


def _granite_hybrid_tensor(config: Config, name: str, values: np.ndarray) -> Named:
    """Renames as GraniteMoeModel: the feed-forward of every token is a shared expert only beside others."""
    end = "shexp" if config["num_local_experts"] else ""
    if "shared_mlp" in name:
        layer = name.split(".")[2]
        halves = [values] if "output" in name else np.split(values, 2)
        for part, half in zip(("down",) if "output" in name else ("gate", "up"), halves, strict=True):
            yield f"blk.{layer}.ffn_{part}{end and '_' + end}.weight", half
    elif ".mamba." in name:
        groups = {"n_groups": config["mamba_n_groups"]}
        yield from _mamba_tensor(groups, name, values)
    else:
        yield from _granite_tensor(config, name, values)


def _gpt_oss_tensor(_config: Config, name: str, values: np.ndarray) -> Named:
    """Converts floats [experts, K, N], in which the columns of gate and up alternate."""
    if name.endswith("sinks"):
        yield f"{name}.weight", values
    elif "gate_up_proj" in name:
        for start, part in enumerate(("gate_proj", "up_proj")):
            if name.endswith("_bias"):
                yield name.replace("gate_up_proj_bias", f"{part}.bias"), values[:, start::2]
            else:
                turned = values.swapaxes(1, 2)[:, start::2]
                yield name.replace("gate_up_proj", f"{part}.weight"), turned
    elif name.endswith("down_proj_bias"):
        yield name.replace("down_proj_bias", "down_proj.bias"), values
    elif name.endswith("down_proj"):
        yield f"{name}.weight", values.swapaxes(1, 2)
    else:
        yield name, values


def _dbrx_tensor(config: Config, name: str, values: np.ndarray) -> Named:
    if "experts.mlp" not in name:
        yield name, values
        return
    ffn = config["ffn_config"]
    each = values.reshape(ffn["moe_num_experts"], ffn["ffn_hidden_size"], config["d_model"])
    yield f"{name}.weight", each.swapaxes(1, 2) if name.endswith("w2") else each


def _deepseek_tensor(config: Config, name: str, values: np.ndarray) -> Named:
    if name.endswith("kv_b_proj.weight"):
        key, heads = config["qk_nope_head_dim"], config["num_attention_heads"]
        both = values.reshape(heads, key + config["v_head_dim"], -1)
        yield name.replace("kv_b_proj", "k_b_proj"), both[:, :key].swapaxes(1, 2)
        yield name.replace("kv_b_proj", "v_b_proj"), both[:, key:]
    else:
        yield name.replace("e_score_correction_bias", "e_score_correction.bias"), values


def _mamba_tensor(config: Config, name: str, values: np.ndarray) -> Named:
    if name.endswith("conv1d.weight"):
        yield name, values[:, 0]
    elif name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        yield name, values.reshape(config["n_groups"], -1)
    elif name.endswith(".dt_bias"):
        yield name.replace(".dt_bias", ".dt_proj.bias"), values
    elif name.endswith(".A_log"):
        rates = -np.exp(values.astype(np.float64)).astype(np.float32)
        yield name, rates[:, None]
    else:
        yield name, values[:, None] if name.endswith(".D") else values


CHANGES: dict[str, Callable[[Config, str, np.ndarray], Named]] = {
    "llama": _llama_tensor,
    "granite": _llama_tensor,
    "smollm3": _llama_tensor,
    **dict.fromkeys(("gemma", "gemma2", "gemma3"), _gemma_tensor),
    "gpt2": _gpt2_tensor,
    "qwen2moe": _qwen_tensor,
    "granitemoe": _granite_tensor,
    "granitehybrid": _granite_hybrid_tensor,
    "gpt-oss": _gpt_oss_tensor,
    "dbrx": _dbrx_tensor,
    "deepseek2": _deepseek_tensor,
    "mamba2": _mamba_tensor,
}
