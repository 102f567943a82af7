"""vLLM with its native plugin for Neuron, for trn2 and trn3: the models that it runs, and its flags.

Names and meanings: vllm-neuron/docs/ of aws-neuron-sdk at 81ce03ae (SDK 2.32) and the later pages of SDK
2.33; `native_plugin` has the rules of its graphs.  NxD Inference ends on trn2 and trn3 with SDK 2.34.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from corepipe.models.config import ModelConfig
from corepipe.neuron.chips.native_plugin import (
    CHUNKS,
    LONGEST_SINGLE_SHOT,
    batch_buckets,
    is_chunked,
    prefill_buckets,
)
from corepipe.planning.planner.space import BatchLimits, DeploymentShape, PlannedDeployment

IMAGE = (
    "public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:0.29.0.1.2.0-neuronx-py314-sdk2.33.0-ubuntu26.04"
)

GENERATIONS = frozenset({"v3", "v4"})
"""Generations of NeuronCores that it runs on."""

MODELS = "Llama 3 (dense), gpt-oss and Qwen3-32B"


@dataclass(frozen=True, slots=True)
class Recipe:
    """The formats in which the plugin runs a kind of model.

    fields: fields of its config that identify it.  formats: by generation of cores.  FP8 comes from a
    checkpoint of ModelOpt; MXFP4 is gpt-oss's own, and on Trn3 alone.
    """

    fields: Mapping[str, int]
    formats: Mapping[str, tuple[str, ...]]


_DENSE = dict.fromkeys(("v3", "v4"), ("bf16", "fp8"))
RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "llama": Recipe({"vocab_size": 128_256}, _DENSE),
        "qwen3": Recipe({"num_layers": 64, "hidden_size": 5120}, _DENSE),
        "gpt_oss": Recipe({}, {"v3": ("bf16",), "v4": ("bf16", "mxfp4")}),
    }
)
"""Recipes by model_type, for models that can be planned (vllm-neuron/docs/model-recipes, SDK 2.33)."""

CACHE_PATH = "/var/cache/vllm"
COMPILATION_SECONDS = 3600
"""VLLM_NEURON_COMPILATION_TIMEOUT; its default of 600 is too short for a first compilation."""

STARTUP_SECONDS = 5400
"""VLLM_ENGINE_READY_TIMEOUT_S, as the longest of the recipes."""


def problem(shape: DeploymentShape, model: ModelConfig) -> str | None:
    """Returns the reason for which the plugin does not run it; None: it does."""
    place, instance, fmt = shape.placement, shape.device, shape.format.name
    recipe = RECIPES.get(model.model_type)
    if recipe is None or any(getattr(model, name) != value for name, value in recipe.fields.items()):
        return f"the native plugin has no {model.model_type} of this kind; it has {MODELS}"
    if place.pipeline > 1:
        return "the native plugin has no pipelines; plan without them"
    formats = recipe.formats[instance.chip.core.version]
    if fmt not in formats:
        return f"the native plugin has no {fmt} for {model.model_type} on {instance.family}; " + (
            f"use --dtype {' or '.join(formats)}"
        )
    return None


def unfit(limits: BatchLimits, tensor: int) -> str | None:
    """Returns the reason for which the plugin cannot batch so; None: it can."""
    chunk, longest = limits.max_num_batched_tokens, limits.max_model_len
    if is_chunked(longest, chunk) and chunk not in CHUNKS:
        return f"the native plugin takes prompts in chunks of {', '.join(map(str, CHUNKS))}, not of {chunk}"
    if not is_chunked(longest, chunk) and longest > LONGEST_SINGLE_SHOT:
        return f"the native plugin computes prompts of up to {LONGEST_SINGLE_SHOT} tokens whole"
    if (chunk if is_chunked(longest, chunk) else longest) % tensor:
        return f"the native plugin's buckets are divisible by tensor {tensor}"
    return None


def neuron_config(deployment: PlannedDeployment) -> dict[str, object]:
    """Returns the keys of the plugin's `neuron_config`: its graphs, and the device that samples tokens.

    {} samples on the device, null on the host; one table of the documentation says the reverse, so that it is
    written and not left to a default.
    """
    shape, limits = deployment.candidate.shape, deployment.candidate.limits
    chunk, longest = limits.max_num_batched_tokens, limits.max_model_len
    config: dict[str, object] = {
        "num_batched_tokens_buckets": list(prefill_buckets(longest, chunk, shape.placement.tensor)),
        "num_seqs_buckets": list(batch_buckets(limits.max_num_seqs)),
        "on_device_sampling_config": {},
    }
    if is_chunked(longest, chunk):
        config["kv_segment_size_buckets"] = [chunk]
    if shape.format.name == "mxfp4":
        config["quantization"] = "mxfp4"
    return config


def flags(model: str, deployment: PlannedDeployment) -> list[str]:
    """Returns the arguments of `vllm serve`.  The plugin chooses size and number of KV blocks itself."""
    shape, limits = deployment.candidate.shape, deployment.candidate.limits
    chunk = min(limits.max_num_batched_tokens, limits.max_model_len)
    named = {
        "--tensor-parallel-size": shape.placement.tensor,
        "--max-model-len": limits.max_model_len,
        "--max-num-seqs": limits.max_num_seqs,
        "--max-num-batched-tokens": chunk,
        "--additional-config": json.dumps({"neuron_config": neuron_config(deployment)}),
    }
    pairs = (str(part) for pair in named.items() for part in pair)
    chunked = is_chunked(limits.max_model_len, chunk)
    divided = ["--enable-expert-parallel"] if shape.placement.expert > 1 else []
    return [model, *pairs, *divided, "--enable-prefix-caching" if chunked else "--no-enable-prefix-caching"]


def environment(shape: DeploymentShape) -> dict[str, str]:
    """Returns the variables of the server; compiler and runtime both read the size of a logical core."""
    return {
        "NEURON_LOGICAL_NC_CONFIG": str(shape.device.lnc),
        "VLLM_CACHE_ROOT": CACHE_PATH,
        "VLLM_NEURON_COMPILATION_TIMEOUT": str(COMPILATION_SECONDS),
        "VLLM_ENGINE_READY_TIMEOUT_S": str(STARTUP_SECONDS),
    }
