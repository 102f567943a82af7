"""The Helm values file that deploys a plan's choice emulated: one pod for each instance, serving with these
flags.

Every value that is a setting of `corepipe serve` has its flag in `FLAGS`, and as a comment in the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import MappingProxyType

from corepipe.engine.config import EngineConfig
from corepipe.engine.flag import flag_of, flags_in
from corepipe.engine.speculative_config import SpeculativeConfig
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.planning.planner.space import BLOCK_SIZE, PlannedDeployment
from corepipe.serving.config import ServerConfig

LEAST_DRAIN, MOST_DRAIN = 5, 86_400
"""Seconds: the default of `--shutdown-timeout`, and the most that it takes."""

FLAGS: Mapping[str, str] = MappingProxyType(
    {
        flag.chart: name.upper() if flag.argument else flag_of(config, name)
        for config in (EngineConfig, ServerConfig)
        for name, flag in flags_in(config).items()
        if flag.chart is not None
    }
)
"""Key in the values file -> flag of `corepipe serve`."""

BESIDE: Mapping[str, str] = MappingProxyType(
    {
        "replicas": "pods, each with one emulated instance",
        "extraVolumes": "paths that are named above, as each node has them",
        "extraVolumeMounts": "where the pods have them",
    }
)
"""Keys that are no flags, and their meaning."""


@dataclass(frozen=True, slots=True)
class PodSettings:
    """The model that the pods serve, as `corepipe plan` was given it.

    weights: whether `model` can be loaded and served itself; otherwise the default model answers, at the pace
    and within the memory of `model`.  profile: a name, or a file.  answer_seconds: of the slowest requests.
    """

    model: str
    weights: bool
    profile: str
    answer_seconds: float


def helm_values(served: PodSettings, deployment: PlannedDeployment, notes: Sequence[str]) -> str:
    """Returns the values file as YAML; `notes` become comments at its head."""
    values = {
        "replicas": deployment.instances,
        **_values(served, deployment),
        **_mounted(served, deployment),
    }
    return "\n".join([*(f"# {note}" for note in notes), *_lines(values), ""])


def _values(served: PodSettings, deployment: PlannedDeployment) -> dict[str, object]:
    shape, limits = deployment.candidate.shape, deployment.candidate.limits
    place, guesses = shape.placement, limits.speculative_config
    return {
        "model": _absolute(served.model) if served.weights else None,
        "timingModel": None if served.weights else _absolute(served.model),
        "instance": shape.instance,
        "placement": place.degrees,
        "format": shape.format.name,
        "clock": "device",
        "profile": served.profile if served.profile in PROFILES else _absolute(served.profile),
        "policy": shape.profile.policy,
        "drainSeconds": min(max(LEAST_DRAIN, ceil(served.answer_seconds)), MOST_DRAIN),
        "batching": {
            "maxModelLen": limits.max_model_len,
            "maxNumSeqs": limits.max_num_seqs,
            "maxNumBatchedTokens": limits.max_num_batched_tokens,
            "blockSize": BLOCK_SIZE,
            **({} if guesses is None else {"speculativeConfig": json.dumps(_guesses(guesses))}),
        },
    }


def _guesses(assumed: SpeculativeConfig) -> dict[str, object]:
    """Returns the speculative settings as given, with a draft model's path as the pods have it."""
    model = {} if assumed.model is None else {"model": _absolute(assumed.model)}
    return {**assumed.as_given(), **model}


def _absolute(source: str) -> str:
    """Returns a path as the pods have it; text that is no path stays as it is."""
    path = Path(source)
    return str(path.absolute()) if path.exists() else source


def _mounted(served: PodSettings, deployment: PlannedDeployment) -> dict[str, object]:
    """Returns volumes for the paths that the values name: each from the same path on the node."""
    guesses = deployment.candidate.limits.speculative_config
    own = None if served.profile in PROFILES else served.profile
    named = {"model": served.model, "profile": own, "draft": guesses and guesses.model}
    paths = {name: Path(path).absolute() for name, path in named.items() if path and Path(path).exists()}
    if not paths:
        return {}
    return {
        "extraVolumes": [
            {"name": name, "hostPath": {"path": str(path), "type": "Directory" if path.is_dir() else "File"}}
            for name, path in paths.items()
        ],
        "extraVolumeMounts": [
            {"name": name, "mountPath": str(path), "readOnly": True} for name, path in paths.items()
        ],
    }


def _lines(values: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for key, value in values.items():
        name = prefix + key
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(value, f"{name}.")
        else:
            comment = FLAGS.get(name) or BESIDE[name]
            yield f"{indent}{key}: {json.dumps(value)}  # {comment}"
