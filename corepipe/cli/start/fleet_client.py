"""Engines on the hosts of a fleet, and the messages on them on stderr."""

from __future__ import annotations

from collections.abc import Callable

from corepipe.cli.start.announce import Announcement, LoadingDisplay
from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import LoadProgress, Ready
from corepipe.serving.config import ServerConfig
from corepipe.serving.fleet.client import FleetClient
from corepipe.serving.fleet.cluster import check_fleet
from corepipe.serving.fleet.hosts import Fleet
from corepipe.serving.fleet.identity import Identity
from corepipe.serving.fleet.ray_fleet import RayFleet
from corepipe.serving.fleet.scaler import Scaler
from corepipe.serving.fleet.slo_share import SloShare
from corepipe.workload.slo import Slo


class AnnouncedFleet(FleetClient):
    """Shows on stderr how far the first host is, then what is served where.

    Hosts look for the files of `engine.model` themselves.
    """

    def __init__(
        self,
        engine: EngineConfig,
        said: Announcement,
        fleet: Fleet,
        server: ServerConfig,
        slo: SloShare,
    ) -> None:
        least, most = server.replicas or 1, server.max_replicas
        scaler = None if most is None else Scaler(least, most, engine.max_num_seqs)
        super().__init__(engine, fleet, Identity.make("front"), server.max_queue_seconds, scaler, slo)
        self.told = LoadingDisplay(said)

    @classmethod
    def of(cls, engine: EngineConfig, said: Announcement, server: ServerConfig) -> AnnouncedFleet:
        """Makes the client of the fleet that `server` names.  Raises UserError."""
        assert server.fleet is not None
        assert server.replicas is not None
        slo = SloShare(None if server.slo is None else Slo.parse(server.slo).met)
        check_fleet(server.fleet)
        fleet = RayFleet(server.fleet, server.replicas, said.name)
        return cls(engine, said, fleet, server, slo)

    async def start(self, progress: Callable[[LoadProgress], None] | None = None) -> Ready:
        return await self.told.shown(super().start, progress)
