"""The shares of several models in one server: NeuronCores, host threads, memory for KV blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from corepipe.engine.assembly.device_plan import plan_device
from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.models.registry import Architecture
from corepipe.neuron.chips.catalog import INSTANCES
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.compile.placement import Placement


@dataclass(frozen=True, slots=True)
class Tenancy:
    """A model that is to have a share: its name, its requested config, and the model that is timed."""

    name: str
    config: EngineConfig
    timed: Architecture


def shared(models: Sequence[Tenancy], cpus: int, kv_bytes: int) -> list[EngineConfig]:
    """Returns the configs of `models`, each with its part of the instance, its threads and its bytes of KV
    blocks.

    cpus: threads that can compute at a time; kv_bytes: host memory for the KV blocks of all. Models whose
    config sets neither have even shares of both. Raises UserError for models that do not fit the instance,
    with the instance that they would fit.
    """
    threads = shares([one.config.threads for one in models], cpus)
    even = max(1, kv_bytes // len(models))
    return [
        one.model_copy(update={"threads": count, "kv_cache_bytes": one.kv_cache_bytes or even})
        for one, count in zip(divided(models), threads, strict=True)
    ]


def check_weights(sizes: Mapping[str, int], memory: int) -> None:
    """Checks that the weights of all models fit the memory. sizes: bytes of each model's weights, by its
    name; memory: of the host, for the weights of all.

    Weights are mapped, not copied: where they do not fit, each step would read them from the disk again.
    Raises UserError then.
    """
    if sum(sizes.values()) <= memory:
        return
    each = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in sizes.items())
    whole = f"{sum(sizes.values()) / 1e9:.1f} GB ({each})"
    raise UserError(
        f"--also: the weights of {len(sizes)} models take {whole}, and the host has {memory / 1e9:.1f} GB of "
        "memory; give one less, or dtype=int8: a byte a weight",
        "also",
    )


def shares(requested: Sequence[int | None], whole: int) -> list[int]:
    """Returns the shares of a whole: a requested one stays; the others divide the rest evenly, at least 1
    each, the first of them the larger ones."""
    others = requested.count(None)
    left = max(whole - sum(one for one in requested if one is not None), others)
    sizes = iter([left // others + (at < left % others) for at in range(others)] if others else [])
    return [next(sizes) if one is None else one for one in requested]


def divided(models: Sequence[Tenancy]) -> list[EngineConfig]:
    """Gives each model consecutive cores: as many as its mode takes of those that the models after it can
    spare.

    Raises UserError as `shared`.
    """
    try:
        return _on(models, models[0].config.instance)
    except _DoesNotFitError as error:
        raise UserError(f"{error}; {_what_would(models)}", "also") from error


class _DoesNotFitError(Exception):
    """The instance is too small for the models."""


def _on(models: Sequence[Tenancy], name: str) -> list[EngineConfig]:
    """Divides this instance. Raises _DoesNotFitError, and UserError for a model that fits no instance."""
    instance = find_instance(name)
    lnc = models[0].config.lnc
    cores = (instance if lnc is None else instance.with_lnc(lnc)).cores
    least = [_least(one.config) for one in models]
    if sum(least) > cores:
        needs = ", ".join(f"{one.name} {count}" for one, count in zip(models, least, strict=True))
        raise _DoesNotFitError(
            f"--also: {len(models)} models need {sum(least)} NeuronCores ({needs}), {name} has {cores}"
        )
    parts, first = [], 0
    for at, one in enumerate(models):
        most = cores - first - sum(least[at + 1 :])
        part = one.config.model_copy(update={"instance": name, "first_core": first, "cores": most})
        parts.append(part)
        first += _taken(one, part)
    return parts


def _least(config: EngineConfig) -> int:
    """Returns the fewest cores of a model."""
    degrees = (config.pipeline, config.tensor, config.data, config.expert)
    return Placement(*(degree or 1 for degree in degrees)).cores


def _taken(model: Tenancy, part: EngineConfig) -> int:
    """Returns the cores that a model takes of its part."""
    try:
        return plan_device(part, model.timed).placement.cores
    except UserError as error:
        if error.param != "instance":
            raise UserError(f"{model.name}: {error.message}", error.param) from error
        where = f"what the other models leave of {part.instance} (NeuronCores: {part.cores})"
        raise _DoesNotFitError(f"--also: {model.name} does not fit {where}") from error


def _what_would(models: Sequence[Tenancy]) -> str:
    """Returns the flag for the cheapest instance that holds all models."""
    by_price = sorted(
        INSTANCES, key=lambda one: (bool(one.hypothetical), one.price_per_hour or inf, one.cores)
    )
    for instance in by_price:
        try:
            _on(models, instance.name)
        except (_DoesNotFitError, UserError):
            continue
        return f"use --instance {instance.name}"
    degrees = "--pipeline, --tensor, --data, --expert"
    return f"no instance of the catalogue holds them so: give one less, or fewer {degrees}"
