"""The metrics of several models in one exposition: each family once, with the samples of all models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

OF_ALL = frozenset({"corepipe_device_dollars_per_hour"})
"""Families of the instance, which the models share."""


class ByModel(Collector):
    """Joins the families of the collectors of each model.

    labelled: samples name their model as `model_name`, except those of `OF_ALL`.  Samples that are equal
    without it appear once: they describe what the models share.
    """

    def __init__(self, models: Mapping[str, Sequence[Collector]], *, labelled: bool) -> None:
        self._models = models
        self._labelled = labelled

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for model, collectors in [*self._models.items()]:
            for family in (one for collector in collectors for one in collector.collect()):
                joined = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                labels = {"model_name": model} if self._labelled and family.name not in OF_ALL else {}
                joined.samples += [one._replace(labels={**labels, **one.labels}) for one in family.samples]
        for family in families.values():
            alike = {(one.name, *sorted(one.labels.items())): one for one in reversed(family.samples)}
            family.samples = list(reversed(alike.values()))
            yield family


def joint_registry(
    models: Mapping[str, Sequence[Collector]],
    *,
    several: bool = False,
    host: bool = True,
    labelled: bool = True,
) -> CollectorRegistry:
    """Makes a registry of the collectors of all models, by name, of which more may come later if there are
    `several`; those of a single model stay unchanged.

    host: also the metrics of this process.
    """
    registry = CollectorRegistry()
    parts: list[Collector] = [ByModel(models, labelled=labelled)]
    if not several:
        (parts,) = (list(collectors) for collectors in models.values())
    registry.register(parts[0])
    if host:
        ProcessCollector(registry=registry)
    for part in parts[1:]:
        registry.register(part)
    return registry
