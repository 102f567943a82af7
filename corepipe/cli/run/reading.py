"""The metrics of a running server, read twice, and what happened in between."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from corepipe.errors import UserError, why
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.chips.hardware import ENGINES, Instance

TIMEOUT_SECONDS = 5.0

Labels = Mapping[str, str]


class UnreachableError(Exception):
    """The server does not answer, or not as a corepipe server does; the message says why."""


@dataclass(frozen=True, slots=True)
class MetricsSample:
    """All series of a server at a moment; `at` is in seconds of this process's clock."""

    at: float
    series: Mapping[str, Sequence[tuple[Labels, float]]]

    def values(self, name: str, **labels: str) -> Iterator[tuple[Labels, float]]:
        """The series of this name that have these labels."""
        wanted = labels.items()
        return ((have, value) for have, value in self.series.get(name, ()) if wanted <= have.items())

    def total(self, name: str, **labels: str) -> float:
        """Returns the sum of series; 0 without any."""
        return sum(value for _, value in self.values(name, **labels))

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Returns the values of series by a label."""
        return {have[label]: value for have, value in self.values(name, **labels)}

    def of(self, name: str | None) -> MetricsSample:
        """Returns the series of a model and of the whole server; all series where the name is None."""
        if name is None:
            return self
        kept = {
            series: [(have, value) for have, value in found if _is_of(have, name)]
            for series, found in self.series.items()
        }
        return MetricsSample(self.at, {series: found for series, found in kept.items() if found})


class MonitoredServer:
    """A running server.

    `url` may leave out the scheme, and may end in /v1 as clients write it.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(headers=headers, timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()

    def deployments(self) -> list[ServedDeployment]:
        """Returns the served models and their placements.  Raises UserError where no corepipe server with an
        engine answers."""
        try:
            placement = self.placement()
            return [ServedDeployment(one) for one in placement.get("models", [placement])]
        except (UnreachableError, ValueError, AttributeError) as error:
            raise UserError(f"{self.url}: no corepipe server answers there ({error})", "url") from error

    def placement(self) -> dict[str, Any]:
        """Returns the placement of the models.  Raises UnreachableError."""
        try:
            found: dict[str, Any] = self._get("/v1/placement").json()
        except ValueError as error:
            raise UnreachableError(f"/v1/placement is no JSON: {error}") from error
        return found

    def read(self) -> MetricsSample:
        """Reads all series.  Raises UnreachableError."""
        series: dict[str, list[tuple[Labels, float]]] = {}
        for path in ("/metrics", "/metrics/neuron"):
            for family in text_string_to_metric_families(self._get(path).text):
                for sample in family.samples:
                    series.setdefault(sample.name, []).append((sample.labels, sample.value))
        return MetricsSample(time.monotonic(), series)

    def _get(self, path: str) -> httpx.Response:
        try:
            answer = self._client.get(self.url + path)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnreachableError(why(error)) from error
        if answer.status_code == 401:
            raise UnreachableError("it wants an API key: --api-key, or COREPIPE_API_KEY")
        if answer.status_code != 200:
            raise UnreachableError(f"{path} is answered with {answer.status_code}")
        return answer


@dataclass(frozen=True, slots=True)
class CoreUse:
    """One emulated core over a while: shares are of the emulated time, rates are for each second of it.

    `memory` has the bytes of its parts, as the placement names them.
    """

    core: int
    busy: float
    engines: Mapping[str, float]
    flops: float
    memory_traffic: float
    memory: Mapping[str, int]


class ServedDeployment:
    """A model as /v1/placement describes it, and its instance.  Raises ValueError for anything else.

    `name` where it is one of several, whose cores are counted from `first_core` on.
    """

    def __init__(self, placement: Mapping[str, Any]) -> None:
        try:
            self.name: str | None = placement.get("name")
            self.first_core: int = placement.get("neuroncore_ids", [0])[0]
            self.model: str = placement["model"]
            self.timed: str = placement["timing_model"] or self.model
            self.format: str = placement["format"]
            self.paced: bool = placement["clock"] == "device"
            self.time_scale: float = placement["time_scale"]
            self._cores: Sequence[Mapping[str, int]] = [core["memory_bytes"] for core in placement["cores"]]
            found = find_instance(placement["instance"])
            self.instance: Instance = found.with_lnc(placement["logical_neuroncore_config"])
        except (LookupError, TypeError, AttributeError, UserError) as error:
            raise ValueError(f"its placement is not one that this version reads: {error}") from error

    def memory(self, core: int) -> Mapping[str, int]:
        """Bytes that a core of the deployment holds, by what they are."""
        return self._cores[core % len(self._cores)]

    @property
    def cores(self) -> int:
        """Cores of a replica."""
        return len(self._cores)


class MetricsDelta:
    """The change of metrics between two samples.  Counters that were reset count from 0."""

    def __init__(self, before: MetricsSample, after: MetricsSample, deployment: ServedDeployment) -> None:
        self._before = before.of(deployment.name)
        self.after = after.of(deployment.name)
        self.deployment = deployment
        self.seconds = after.at - before.at

    def count(self, name: str, **labels: str) -> float:
        """Returns by how much counters have increased."""
        return _gone_on(self._before.total(name, **labels), self.after.total(name, **labels))

    def rate(self, name: str, **labels: str) -> float:
        """Returns by how much counters have increased in a second."""
        return self.count(name, **labels) / self.seconds if self.seconds > 0 else 0.0

    def ratio(self, name: str, of: str) -> float | None:
        """Returns the increase of one counter by that of another; None where the other stands still."""
        whole = self.count(of)
        return self.count(name) / whole if whole else None

    def quantile(self, histogram: str, share: float) -> float | None:
        """Returns a quantile of the values that were observed in between, linear within a bucket; None
        without any."""
        ends = sorted({float(have["le"]) for have, _ in self.after.values(f"{histogram}_bucket")})
        counts = [self.count(f"{histogram}_bucket", le=_bound(end)) for end in ends]
        if not counts or counts[-1] <= 0:
            return None
        rank, low, below = share * counts[-1], 0.0, 0.0
        for end, count in zip(ends, counts, strict=True):
            if count >= rank:
                inside = (rank - below) / (count - below) if count > below else 0.0
                return low if end == inf else low + (end - low) * inside
            low, below = end, count
        return low

    @cached_property
    def cores(self) -> list[CoreUse]:
        """The cores in use."""
        return [
            self._core(replica, core, self.deployment.first_core + at * self.deployment.cores + core)
            for at, replica in enumerate(self._replicas)
            for core in range(self.deployment.cores)
        ]

    @cached_property
    def hosts(self) -> Mapping[str, bool]:
        """Tells for each machine of a fleet whether it takes requests; empty without a fleet."""
        told = self.after.by("corepipe_fleet_host_serving", "node")
        return {node: serving == 1 for node, serving in sorted(told.items())}

    @property
    def instances(self) -> int:
        """The number of emulated instances: each machine of a fleet has one."""
        return max(1, len(self.hosts))

    @property
    def emulated_seconds(self) -> float:
        """The emulated seconds of the replica that has worked longest."""
        return max(map(self._passed, self._replicas), default=0.0)

    @property
    def _replicas(self) -> list[str]:
        return sorted(
            (have["engine"] for have, _ in self.after.values("corepipe_device_seconds_total")), key=int
        )

    def _core(self, replica: str, core: int, number: int) -> CoreUse:
        labels = {"engine": replica, "core": str(core)}
        passed = self._passed(replica)

        def share(name: str, **more: str) -> float:
            return self.count(name, **labels, **more) / passed if passed > 0 else 0.0

        return CoreUse(
            core=number,
            busy=min(1.0, share("corepipe_core_busy_seconds_total")),
            engines={
                unit: min(1.0, share("corepipe_core_engine_busy_seconds_total", unit=unit))
                for unit in ENGINES
            },
            flops=share("corepipe_core_flops_total"),
            memory_traffic=share("corepipe_core_memory_traffic_bytes_total"),
            memory=self.deployment.memory(core),
        )

    def _passed(self, replica: str) -> float:
        """Emulated seconds: under the host clock they pass only while there is work."""
        if self.deployment.paced:
            return self.seconds / self.deployment.time_scale
        return self.count("corepipe_device_seconds_total", engine=replica)


def _is_of(labels: Labels, name: str) -> bool:
    """Tells whether a series belongs to this model, or to none."""
    return all(labels.get(label, name) == name for label in ("model_name", "runtime_tag"))


def _gone_on(before: float, after: float) -> float:
    return after - before if after >= before else after


def _bound(end: float) -> str:
    """Returns the bound of a bucket as the server writes it."""
    return "+Inf" if end == inf else str(end)
