"""The values file that deploys a plan's choice emulated: one pod for each instance, serving with these flags.

Every value that is a setting of `corepipe serve` has its flag in `FLAGS`, and beside it in the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType

from corepipe.planning.planner.space import BLOCK_SIZE, PlannedDeployment

LEAST_DRAIN, MOST_DRAIN = 5, 86_400
"""Seconds: the default of `--shutdown-timeout`, and the most that it takes."""

FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "model": "MODEL",
        "timingModel": "--timing-model",
        "instance": "--instance",
        "placement.pipeline": "--pipeline",
        "placement.tensor": "--tensor",
        "placement.data": "--data",
        "placement.expert": "--expert",
        "format": "--dtype",
        "clock": "--clock",
        "profile": "--profile",
        "policy": "--policy",
        "drainSeconds": "--shutdown-timeout",
        "batching.maxModelLen": "--max-model-len",
        "batching.maxNumSeqs": "--max-num-seqs",
        "batching.maxNumBatchedTokens": "--max-num-batched-tokens",
        "batching.blockSize": "--block-size",
        "batching.speculativeConfig": "--speculative-config",
    }
)
"""Key in the values file -> flag of `corepipe serve`."""


@dataclass(frozen=True, slots=True)
class Served:
    """What the pods serve, as `corepipe plan` was told.

    weights: whether `model` can be loaded and served itself; otherwise the default model answers, at the pace
    and within the memory of `model`.  profile: a name, or a file.  answer_seconds: of the slowest requests.
    """

    model: str
    weights: bool
    profile: str
    answer_seconds: float


def helm_values(served: Served, deployment: PlannedDeployment, notes: Sequence[str]) -> str:
    """The values file as YAML; `notes` become comments at its head."""
    values = {"replicas": deployment.instances, **_values(served, deployment)}
    return "\n".join([*(f"# {note}" for note in notes), *_lines(values), ""])


def _values(served: Served, deployment: PlannedDeployment) -> dict[str, object]:
    shape, limits = deployment.candidate.shape, deployment.candidate.limits
    place, guesses = shape.placement, limits.speculative_config
    return {
        "model": served.model if served.weights else None,
        "timingModel": None if served.weights else served.model,
        "instance": shape.instance,
        "placement": place.degrees,
        "format": shape.format.name,
        "clock": "device",
        "profile": served.profile,
        "policy": shape.profile.policy,
        "drainSeconds": min(max(LEAST_DRAIN, ceil(served.answer_seconds)), MOST_DRAIN),
        "batching": {
            "maxModelLen": limits.max_model_len,
            "maxNumSeqs": limits.max_num_seqs,
            "maxNumBatchedTokens": limits.max_num_batched_tokens,
            "blockSize": BLOCK_SIZE,
            **({} if guesses is None else {"speculativeConfig": json.dumps(guesses.as_given())}),
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
