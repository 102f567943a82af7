"""vLLM with NxD Inference, for inf2 and trn1: the models that it runs, and its flags.

Release: SDK 2.28, the last whose NKI kernels run there (libraries of later ones, up to 2.31.1, name inf2 and
trn1 and have plain attention: release-notes/components/nxd-inference.rst).  Names and meanings: the NxD
Inference documentation (libraries/nxd-inference/developer_guides/vllm-user-guide-v1.rst and
feature-guide.rst, libraries/nxd-inference/api-guides/api-guide.rst) and the plugin that takes
`override_neuron_config` (vllm-project/vllm-neuron, neuronx_distributed_model_loader.py).
"""

from __future__ import annotations

import json
from math import log2

from corepipe.planning.planner.space import BatchLimits, DeploymentShape, PlannedDeployment

IMAGE = "public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:0.13.0-neuronx-py312-sdk2.28.0-ubuntu24.04"

FIRST_BUCKET = 128
GLOBAL_TOPK = 256

DTYPES = {"bf16": "bfloat16", "int8-weights": "bfloat16", "fp32": "float32"}
"""Formats that NxD Inference computes -> vLLM's --dtype."""

QUANTIZED, QUANTIZED_PATH = "int8-weights", "/models/quantized"
"""The format whose weights are quantised before a server starts, and their path."""

MODELS = frozenset(
    {"llama", "llama4", "llama4_text", "mistral", "mixtral", "dbrx", "qwen2", "qwen3", "qwen3_moe"}
)
"""model_types that it is documented to support: developer_guides/model-reference.rst, where Mistral is a
Llama; Qwen3-MoE in release-notes/components/nxd-inference.rst.  Contributed models are left out."""

STARTUP_SECONDS = 3600
"""Seconds that a server may compile: optimum-neuron's guide gives 30 to 60 minutes for large models."""


def problem(shape: DeploymentShape) -> str | None:
    """Returns the reason for which NxD Inference does not run it; None: it does."""
    if shape.placement.pipeline > 1:
        return "NxD Inference cuts by tensor alone; plan without pipelines"
    if shape.format.name not in DTYPES:
        return f"NxD Inference has no {shape.format.name}; use --dtype {' or '.join(DTYPES)}"
    return None


def unfit(limits: BatchLimits, prompt: int) -> str | None:
    """Returns the reason for which it cannot batch so, for prompts of up to `prompt` tokens, which it
    computes whole; None: it can."""
    if limits.max_num_batched_tokens >= min(prompt, limits.max_model_len):
        return None
    return f"NxD Inference computes prompts whole, not {limits.max_num_batched_tokens} tokens at a time"


def buckets(longest: int) -> list[int]:
    """Returns the default buckets of NxD Inference: powers of two from 128 up, as many as `longest` is
    nearest to, the last of which is `longest` itself (modules/autobucketing.py, generate_buckets)."""
    powers = range(int(log2(FIRST_BUCKET)), round(log2(longest)))
    return [*(1 << power for power in powers), longest]


def neuron_config(deployment: PlannedDeployment) -> dict[str, object]:
    """Returns the keys of NxD Inference's NeuronConfig."""
    shape, limits = deployment.candidate.shape, deployment.candidate.limits
    batch, longest = limits.max_num_seqs, limits.max_model_len
    config: dict[str, object] = {
        "tp_degree": shape.placement.tensor,
        "batch_size": batch,
        "ctx_batch_size": 1,
        "tkg_batch_size": batch,
        "is_continuous_batching": batch > 1,
        "max_context_length": longest,
        "seq_len": longest,
        "enable_bucketing": True,
        "context_encoding_buckets": buckets(longest),
        "token_generation_buckets": buckets(longest),
        "on_device_sampling_config": {"dynamic": True, "deterministic": False, "global_topk": GLOBAL_TOPK},
        "async_mode": shape.profile.asynchronous,
    }
    if shape.placement.expert > 1:
        config |= {"moe_ep_degree": shape.placement.expert, "moe_tp_degree": 1}
    if shape.format.name == QUANTIZED:
        config |= {
            "quantized": True,
            "quantized_checkpoints_path": QUANTIZED_PATH,
            "quantization_dtype": "int8",
            "quantization_type": "per_channel_symmetric",
        }
    return config


def flags(model: str, deployment: PlannedDeployment) -> list[str]:
    """Returns the arguments of `vllm serve`.

    Without prefix caching a sequence's keys and values lie in one block of max_model_len tokens, which the
    plugin sets itself (vllm_neuron/platform.py), so that there is a block for each sequence.
    """
    shape, limits = deployment.candidate.shape, deployment.candidate.limits
    additional = {"override_neuron_config": neuron_config(deployment)}
    named = {
        "--dtype": DTYPES[shape.format.name],
        "--tensor-parallel-size": shape.placement.tensor,
        "--max-num-seqs": limits.max_num_seqs,
        "--max-model-len": limits.max_model_len,
        "--num-gpu-blocks-override": limits.max_num_seqs,
        "--additional-config": json.dumps(additional),
    }
    pairs = (str(part) for pair in named.items() for part in pair)
    return [model, *pairs, "--no-enable-prefix-caching"]


def environment(shape: DeploymentShape) -> dict[str, str]:
    """Returns the variables of the server."""
    return {"NEURON_RT_NUM_CORES": str(shape.placement.tensor)}
