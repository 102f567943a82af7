"""The values file that deploys a plan's choice emulated: one pod for each instance, serving with these flags.

Every value that is a setting of `corepipe serve` has its flag in `FLAGS`, and beside it in the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from corepipe.planning.space import BLOCK_SIZE, Deployment

FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "model": "MODEL",
        "timingModel": "--timing-model",
        "instance": "--instance",
        "placement.pipeline": "--pipeline",
        "placement.tensor": "--tensor",
        "placement.data": "--data",
        "format": "--dtype",
        "clock": "--clock",
        "profile": "--profile",
        "policy": "--policy",
        "batching.maxModelLen": "--max-model-len",
        "batching.maxNumSeqs": "--max-num-seqs",
        "batching.maxNumBatchedTokens": "--max-num-batched-tokens",
        "batching.blockSize": "--block-size",
    }
)
"""Key in the values file -> flag of `corepipe serve`."""


def helm_values(model: str, *, weights: bool, deployment: Deployment, notes: Sequence[str]) -> str:
    """The values file as YAML.

    `weights`: whether `model` can be loaded and served itself; otherwise the default model answers, at the
    pace and within the memory of `model`.  `notes` become comments at its head.
    """
    values = {"replicas": deployment.instances, **_values(model, deployment, weights=weights)}
    return "\n".join([*(f"# {note}" for note in notes), *_lines(values), ""])


def _values(model: str, deployment: Deployment, *, weights: bool) -> dict[str, object]:
    shape, limits = deployment.candidate.shape, deployment.candidate.limits
    place = shape.placement
    return {
        "model": model if weights else None,
        "timingModel": None if weights else model,
        "instance": shape.instance,
        "placement": {"pipeline": place.pipeline, "tensor": place.tensor, "data": place.data},
        "format": shape.format.name,
        "clock": "device",
        "profile": shape.profile.name,
        "policy": shape.profile.policy,
        "batching": {
            "maxModelLen": limits.max_model_len,
            "maxNumSeqs": limits.max_num_seqs,
            "maxNumBatchedTokens": limits.max_num_batched_tokens,
            "blockSize": BLOCK_SIZE,
        },
    }


def _lines(values: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for key, value in values.items():
        name = prefix + key
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(value, f"{name}.")
        else:
            comment = FLAGS.get(name, "pods, each with one emulated instance")
            yield f"{indent}{key}: {json.dumps(value)}  # {comment}"
