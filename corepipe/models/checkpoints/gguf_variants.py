"""Values of a config.json that GGUF metadata express differently, or leave to the reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from types import MappingProxyType

import numpy as np

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.checkpoint import missing
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.fields import MAX_HEAD_DIM, MAX_LAYERS

SOFTMAX, SIGMOID = 1, 2
"""Values of `expert_gating_func`."""
FP32_MAX = float(np.finfo(np.float32).max)
DBRX_EPS = 1e-5
UNSAID_GROUPS: Mapping[int, tuple[int, int]] = MappingProxyType({160: (8, 3), 256: (8, 4)})
"""DeepSeek-V2's and V3's groups, and how many of them a token takes, by the number of experts."""


def factors(file: GgufFile, name: str) -> tuple[float, ...]:
    """Reads a tensor of divisors of frequencies."""
    if name not in file.tensors:
        raise missing(file.path, name)
    shape = file.tensors[name].shape
    if len(shape) != 1 or shape[0] > MAX_HEAD_DIM:
        raise UserError(f"{file.path}: tensor {name} has shape {list(shape)}, more than a head")
    return tuple(file.read(name).tolist())


def decimal(value: object) -> object:
    """Returns the shortest decimal whose nearest fp32 is this number: the value in the original config."""
    if not isinstance(value, float) or not abs(value) < FP32_MAX or np.float32(value) != value:
        return value
    return float(str(np.float32(value)))


def _said(file: GgufFile, key: str) -> object:
    """Returns the metadata under a key after the architecture's name."""
    return file.metadata.get(f"{file.metadata['general.architecture']}.{key}")


def _mistral(_file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """Tells Mistral, by its window, and Mixtral from llama: llama.cpp stores all of them as llama."""
    if values["num_local_experts"]:
        return {"model_type": "mixtral"}
    return {"model_type": "mistral" if values["sliding_window"] is not None else "llama"}


def _qwen3_moe(_file: GgufFile, _values: dict[str, object]) -> dict[str, object]:
    """Sets a flag that files lack: llama.cpp makes the weights of Qwen3's experts alone sum to 1."""
    return {"norm_topk_prob": True}


def _gemma2(_file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """Sets the scale of scores, which files lack: a head's size; for the 27B the width over the heads."""
    return {"query_pre_attn_scalar": _query_scale(values, layers_of_27b=46)}


def _gemma3(file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """Sets the rotary bases: files have at most that of layers without a window; the others' is 10,000."""
    found: dict[str, object] = {"query_pre_attn_scalar": _query_scale(values, layers_of_27b=62)}
    if values["rope_theta"] is None:
        found["rope_theta"] = 1e6
    if values["rope_local_base_freq"] is None:
        found["rope_local_base_freq"] = 1e4
    return found | _layer_types(file, values)


def _query_scale(values: dict[str, object], layers_of_27b: int) -> object:
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    is_27b = values["num_hidden_layers"] == layers_of_27b
    if is_27b and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        return hidden // heads
    return values["head_dim"]


def _layer_types(file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """Returns which layers have a window, where the file says it or has none."""
    layers = values["num_hidden_layers"]
    if values["sliding_window"] is None and isinstance(layers, int):
        return {"layer_types": ["full_attention"] * min(layers, MAX_LAYERS)}
    pattern = _said(file, "attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return {"layer_types": ["sliding_attention" if one else "full_attention" for one in pattern]}
    return {} if pattern is None else {"sliding_window_pattern": pattern}


def _olmo2(file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """Tells OLMo 3 by its windows: llama.cpp stores it as olmo2."""
    if values["sliding_window"] is None:
        return {}
    return {"model_type": "olmo3", **_layer_types(file, values)}


def _stablelm(file: GgufFile, _values: dict[str, object]) -> dict[str, object]:
    return {"qk_layernorm": "blk.0.attn_q_norm.weight" in file.tensors}


def _phi3(file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """Reads the factors of long contexts, which are tensors; a window of 0 means none."""
    found: dict[str, object] = {} if values["sliding_window"] else {"sliding_window": None}
    if "rope_factors_long.weight" not in file.tensors:
        return found
    scaling: dict[str, object] = {
        f"{name}_factor": list(factors(file, f"rope_factors_{name}.weight")) for name in ("short", "long")
    }
    scaling["attention_factor"] = values["attention_factor"]
    return {**found, "rope_scaling": {"rope_type": "longrope", **scaling}}


def _phimoe(file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    return {**_phi3(file, values), "lm_head_bias": "output.bias" in file.tensors}


def _dbrx(file: GgufFile, _values: dict[str, object]) -> dict[str, object]:
    """Checks the constant that its norms add."""
    key = "attention.layer_norm_epsilon"
    if decimal(_said(file, key)) != DBRX_EPS:
        raise _refused(file, key, f"only {DBRX_EPS} is supported")
    return {}


def _gpt_oss(_file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """Sets yarn's bounds not to be rounded, as the configs have it. Without scaling yarn is off, although a
    config without a word on it means yarn."""
    scaling = values.get("rope_scaling")
    if not isinstance(scaling, dict):
        return {"rope_scaling": {"rope_type": "default"}}
    return {"rope_scaling": {**scaling, "truncate": False}}


def _deepseek(file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """Tells V3, whose scores are sigmoids, from V2 with softmax; without the key, corrections show V3."""
    key = "expert_gating_func"
    gating = _said(file, key)
    if gating not in (None, SOFTMAX, SIGMOID):
        raise _refused(file, key, f"only {SOFTMAX} (softmax) and {SIGMOID} (sigmoid) are supported")
    corrected = any(name.endswith(".exp_probs_b.bias") for name in file.tensors)
    sigmoid = gating == SIGMOID or (gating is None and corrected)
    found: dict[str, object] = {"model_type": "deepseek_v3" if sigmoid else "deepseek_v2"}
    if values["routed_scaling_factor"] is None:
        found["routed_scaling_factor"] = 1.0
    if values["norm_topk_prob"] is None:
        found["norm_topk_prob"] = False
    groups = _deepseek_groups(values)
    if not sigmoid and groups["n_group"] != 1:
        found["topk_method"] = "group_limited_greedy"
    return found | groups | _deepseek_heads(file, values) | _deepseek_rope(file, values)


def _deepseek_groups(values: dict[str, object]) -> dict[str, object]:
    """Returns the groups; where a file lacks them, those of the published models with as many experts."""
    if values["n_group"]:
        return {"n_group": values["n_group"], "topk_group": values["topk_group"]}
    experts = values["n_routed_experts"]
    groups, taken = UNSAID_GROUPS.get(experts, (1, 1)) if isinstance(experts, int) else (1, 1)
    return {"n_group": groups, "topk_group": taken}


def _deepseek_heads(file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """Returns the sizes of heads. A key's length includes both of its parts. Older files, which do not keep
    latents, have no lengths of their own for heads."""
    key, rotated = values["qk_nope_head_dim"], values["qk_rope_head_dim"]
    key = _said(file, "attention.key_length") if key is None else key
    found: dict[str, object] = {}
    if isinstance(key, int) and isinstance(rotated, int):
        found["qk_nope_head_dim"] = key - rotated
    if values["v_head_dim"] is None:
        found["v_head_dim"] = _said(file, "attention.value_length")
    return found


def _deepseek_rope(file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """Returns yarn's factors: that of scores is written as a tenth; that of cosines is not written, and is
    the same in the published models."""
    scaling, tenth = values.get("rope_scaling"), _said(file, "rope.scaling.yarn_log_multiplier")
    if not isinstance(scaling, dict) or not isinstance(tenth, float):
        return {}
    scale = float(Decimal(str(decimal(tenth))) * 10)
    return {"rope_scaling": {**scaling, "mscale": scale, "mscale_all_dim": scale}}


def _mamba2(file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    return _scanned(file, values["num_heads"], values["hidden_size"], ("head_dim", "expand"))


def _granite_hybrid(file: GgufFile, values: dict[str, object]) -> dict[str, object]:
    """Reads the layers' kinds: layers without key/value heads are Mamba's.

    Bamba's files also have this architecture, but no factors.
    """
    if values["attention_multiplier"] is None:
        raise _refused(file, "attention.scale", "Bamba is read from safetensors alone")
    key = "attention.head_count_kv"
    counts = _said(file, key)
    if not isinstance(counts, list) or len(attending := {count for count in counts if count}) > 1:
        raise _refused(
            file, key, "one number of heads in all layers with attention is supported, 0 in others"
        )
    rotated = _said(file, "rope.scaling.finetuned") is not False
    dense = {} if values["num_local_experts"] else {"num_local_experts": 0}
    return {
        **dense,
        "num_key_value_heads": next(iter(attending), values["num_attention_heads"]),
        "layer_types": ["attention" if count else "mamba" for count in counts],
        "position_embedding_type": "rope" if rotated else "nope",
        **_scanned(file, values["mamba_n_heads"], values["hidden_size"], ("mamba_d_head", "mamba_expand")),
    }


def _scanned(file: GgufFile, heads: object, hidden: object, names: tuple[str, str]) -> dict[str, object]:
    """Returns the size of a head and the expansion: the heads' width is a multiple of the model's."""
    key = "ssm.inner_size"
    inner = _said(file, key)
    if not (isinstance(inner, int) and isinstance(heads, int) and isinstance(hidden, int)):
        raise _refused(file, key, "ssm.time_step_rank, embedding_length and this must be integers")
    if min(inner, heads, hidden) < 1 or inner % heads or inner % hidden:
        raise _refused(file, key, f"no multiple of {heads} heads, and of the model's width, {hidden}")
    return dict(zip(names, (inner // heads, inner // hidden), strict=True))


def _refused(file: GgufFile, key: str, why: str) -> UserError:
    name = f"{file.metadata['general.architecture']}.{key}"
    return UserError(f"{file.path}: {name} is {shown(repr(_said(file, key)), 40)}; {why}")


VARIANTS: Mapping[str, Callable[[GgufFile, dict[str, object]], dict[str, object]]] = MappingProxyType(
    {
        "dbrx": _dbrx,
        "deepseek2": _deepseek,
        "llama": _mistral,
        "gemma2": _gemma2,
        "gemma3": _gemma3,
        "olmo2": _olmo2,
        "gpt-oss": _gpt_oss,
        "granitehybrid": _granite_hybrid,
        "mamba2": _mamba2,
        "phi3": _phi3,
        "phimoe": _phimoe,
        "qwen3moe": _qwen3_moe,
        "stablelm": _stablelm,
    }
)
"""The functions that set such values, by architecture."""
