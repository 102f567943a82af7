"""What a front knows of one host: whether its engine takes orders, and what it was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from corepipe.engine.messages import KEY_BYTES, Abort, Outputs, Prefixes, Ready, Stats, Submit
from corepipe.serving.fleet.connector import Connector, HostAddress
from corepipe.serving.fleet.same_bytes import OWN
from corepipe.serving.fleet.wire import EngineOrder
from corepipe.serving.supervision.stats import total


@dataclass(eq=False)
class RemoteHost:
    """A host and its engine.

    slot: its place among the front's hosts, by which its replicas are numbered.  lease, epoch: of the link
    and of the engine that take orders now; None: none does.  open: what it has and has not ended.
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
        """Whether it takes orders."""
        return self.epoch is not None

    @property
    def takes(self) -> bool:
        """Whether it takes new requests."""
        return self.serves and not self.draining

    @property
    def state(self) -> str:
        """For people: loading and out of reach are alike to the front."""
        if self.draining:
            return "draining"
        return "serving" if self.serves else "away"

    @property
    def replicas(self) -> int:
        """Of its engine."""
        return 1 if self.ready is None else int(self.ready.placement.get("data", 1))

    def placement(self) -> dict[str, Any]:
        """As the placement answer has it."""
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
        """What the host has told of those that it refused, by its machine and the reason."""
        return {(self.at.node, reason): count for reason, count in self.refused.items()}

    def load(self, epoch: int, ready: Ready) -> None:
        """The engine takes orders."""
        if epoch != self._counted:  # another one, whose counters begin at 0
            self._before, self._counted = dict(self._stats), epoch
        self.epoch, self.ready = epoch, ready

    def lose(self) -> set[str]:
        """It takes no orders; what is lost with it."""
        lost, self.open = self.open, set()
        self.epoch = None
        return lost

    def submit(self, submit: Submit) -> None:
        self.open.add(submit.id)
        self._order(submit)

    def abort(self, ids: list[str]) -> None:
        self._order(Abort(ids))

    def lies(self, news: Outputs) -> str | None:
        """What is not true of the news of an engine that has just this; None where nothing is found."""
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
        """Whether it says that it finds more than it has blocks."""
        blocks = 0 if self.ready is None else self.ready.blocks
        return len(prefixes.stored) > blocks * KEY_BYTES

    def numbered(self, stats: Stats) -> Stats:
        """As the front tells it: of all its replicas, and of all engines that were in this place."""
        before = self._before.get(stats.replica)
        seen = stats if before is None else total(before, stats)
        self._stats[stats.replica] = replace(seen, iteration_tokens=[], step_seconds=[], paces=[])
        return replace(seen, replica=self.slot * self.replicas + stats.replica)

    def _order(self, command: Submit | Abort) -> None:
        if self.epoch is not None and self.connector is not None:
            self.connector.send(self.lease, EngineOrder(self.epoch, command))
