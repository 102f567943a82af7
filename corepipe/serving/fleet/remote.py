"""The hosts as their front knows them: their engines, their requests, and what makes two of them alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import asdict, replace

from corepipe.engine.messages import (
    KEY_BYTES,
    Abort,
    FleetOutput,
    Output,
    Outputs,
    Prefixes,
    Ready,
    Stats,
    Submit,
)
from corepipe.serving.fleet.connector import Connector, HostAddress
from corepipe.serving.fleet.wire import EngineOrder
from corepipe.serving.supervision.stats import total

OWN = frozenset({"host_limits", "kv_blocks_per_replica"})
"""The fields of a placement that may differ between machines, since they depend on memory."""


def difference(one: Ready, other: Ready) -> str | None:
    """Returns why the engine of `other` must not continue answers of that of `one`; None: it may."""
    if one.isa != other.isa and one.placement.get("bits") != "same":
        return f"its kernels are for {other.isa}, those of the other hosts are for {one.isa}: use --bits same"
    if one.weights != other.weights:
        return f"its weights differ from those of the other hosts ({other.weights}, not {one.weights})"
    for name in ("block_size", "max_model_len", "task"):
        ours, theirs = getattr(one, name), getattr(other, name)
        if ours != theirs:
            return f"its {name} is {theirs}, that of the other hosts is {ours}"
    if _shared(one.placement) != _shared(other.placement):
        return "its placement of the model differs from that of the other hosts"
    return None


def _shared(placement: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in placement.items() if name not in OWN}


@dataclass(eq=False)
class RemoteHost:
    """A host and its engine.

    slot: its number among the front's hosts, by which its replicas are numbered.  lease, epoch: those of the
    link and of the engine that take commands now; None: none does.  open: the ids of its open requests.
    """

    at: HostAddress
    slot: int
    lease: int = 0
    epoch: int | None = None
    ready: Ready | None = None
    draining: bool = False
    open: set[str] = field(default_factory=set)
    refused: Mapping[str, int] = field(default_factory=dict)
    connector: Connector | None = None
    _stats: dict[int, Stats] = field(default_factory=dict)
    _before: dict[int, Stats] = field(default_factory=dict)
    _counted: int | None = None

    @property
    def serves(self) -> bool:
        """Tells whether it takes commands."""
        return self.epoch is not None

    @property
    def takes(self) -> bool:
        """Tells whether it takes new requests."""
        return self.serves and not self.draining

    @property
    def state(self) -> str:
        """Names its state for people; the front cannot tell a host that loads from one out of reach."""
        if self.draining:
            return "draining"
        return "serving" if self.serves else "away"

    @property
    def replicas(self) -> int:
        """The number of replicas of its engine."""
        return 1 if self.ready is None else int(self.ready.placement.get("data", 1))

    def placement(self) -> dict[str, Any]:
        """Describes it as the answer of /v1/placement does."""
        first = self.slot * self.replicas
        own = {} if self.ready is None else {**self.ready.placement, "kernels": self.ready.isa}
        return {
            "name": self.at.name,
            "node": self.at.node,
            "address": f"{self.at.address}:{self.at.port}",
            "state": self.state,
            "replicas": [*range(first, first + self.replicas)],
            **{name: own[name] for name in ("kernels", *sorted(OWN)) if name in own},
        }

    def refusals(self) -> dict[tuple[str, str], int]:
        """Returns the host's counts of refused connections and messages, by its machine and reason."""
        return {(self.at.node, reason): count for reason, count in self.refused.items()}

    def load(self, epoch: int, ready: Ready) -> None:
        """Notes that the engine takes commands."""
        if epoch != self._counted:  # another engine, whose counters begin at 0
            self._before, self._counted = dict(self._stats), epoch
        self.epoch, self.ready = epoch, ready

    def lose(self) -> set[str]:
        """Notes that it takes no commands.  Returns the ids of the requests that are lost with it."""
        lost, self.open = self.open, set()
        self.epoch = None
        return lost

    def submit(self, submit: Submit) -> None:
        self.open.add(submit.id)
        self._order(submit)

    def abort(self, ids: list[str]) -> None:
        self._order(Abort(ids))

    def fault_in(self, news: Outputs) -> str | None:
        """Returns what is impossible in outputs of an engine with these open requests; None: nothing is."""
        told = {*(output.id for output in news.outputs), *(started.id for started in news.started)}
        if not told <= self.open:
            return "foreign"
        if news.prefixes is not None and self._too_many(news.prefixes):
            return "prefixes"
        stats = news.stats
        if stats is None:
            return None
        gauges = (stats.running, stats.waiting, stats.waiting_tokens, stats.blocks_held, stats.blocks_cached)
        if min(gauges) < 0 or stats.running + stats.waiting > len(self.open):
            return "load"
        return None if 0 <= stats.replica < self.replicas else "load"

    def _too_many(self, prefixes: Prefixes) -> bool:
        """Tells whether it reports more cached prefixes than it has blocks."""
        blocks = 0 if self.ready is None else self.ready.blocks
        return len(prefixes.stored) > blocks * KEY_BYTES

    def numbered(self, stats: Stats) -> Stats:
        """Returns stats as the front reports them: numbered over all hosts, earlier engines included."""
        before = self._before.get(stats.replica)
        seen = stats if before is None else total(before, stats)
        self._stats[stats.replica] = replace(seen, iteration_tokens=[], step_seconds=[], paces=[])
        return replace(seen, replica=self.slot * self.replicas + stats.replica)

    def _order(self, command: Submit | Abort) -> None:
        if self.epoch is not None and self.connector is not None:
            self.connector.send(self.lease, EngineOrder(self.epoch, command))


class RequestHosts:
    """The hosts of the open requests of a front."""

    def __init__(self) -> None:
        self._at: dict[str, RemoteHost] = {}
        self._been: dict[str, list[str]] = {}

    def __contains__(self, request_id: str) -> bool:
        """Tells whether a host has the request."""
        return request_id in self._at

    def give(self, request_id: str, remote: RemoteHost) -> None:
        """Notes that a host has the request now."""
        self._at[request_id] = remote
        self._been.setdefault(request_id, []).append(remote.at.node)

    def lose(self, ids: Iterable[str]) -> None:
        """Notes that no host has these requests until `give` gives them to one."""
        for request_id in ids:
            self._at.pop(request_id, None)

    def of(self, remote: RemoteHost, ids: Sequence[str]) -> list[str]:
        """Returns those of the requests that this host has."""
        return [request_id for request_id in ids if self._at.get(request_id) is remote]

    def with_machines(self, outputs: Sequence[Output]) -> list[Output]:
        """Returns the outputs, each last one with the machines that had its request; forgets that request."""
        return [output if output.finish_reason is None else self._end(output) for output in outputs]

    def _end(self, output: Output) -> FleetOutput:
        self._at.pop(output.id, None)
        return FleetOutput(**asdict(output), machines=self._been.pop(output.id, []))
