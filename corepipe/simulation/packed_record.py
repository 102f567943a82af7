"""The record of a simulation whose replicas are native: the figures of `SimulationRecord`, packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.request import Drafted
from corepipe.simulation.columns import Floats, RecordTable
from corepipe.simulation.early_stop import EarlyStop
from corepipe.simulation.record import (
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    PlayedReplica,
    SimulationRecord,
    in_order,
    together,
)

if TYPE_CHECKING:
    from corepipe.kernels import _native

_PLACES = {name: place for place, name in enumerate(STEP_COLUMNS)}


class PackedSteps:
    """The steps of a replica: reads like `Columns`, and unpacks at each read."""

    def __init__(self, replica: _native.SimulatedReplica) -> None:
        self._replica = replica

    def __len__(self) -> int:
        return self._replica.steps

    def __getitem__(self, name: str) -> Floats:
        column: Floats = self._replica.step_columns([_PLACES[name]])[0]
        return column

    def parts(self, names: Sequence[str], rows: int) -> Iterator[Floats]:
        """[names, rows at most] of each part of the steps, in order."""
        reader = self._replica.step_reader([_PLACES[name] for name in names])
        for _ in range(0, len(self), rows):
            yield reader.read(rows)

    @property
    def columns(self) -> dict[str, Floats]:
        """Returns all columns, by name."""
        return {name: self[name] for name in STEP_COLUMNS}

    @property
    def nbytes(self) -> int:
        """Memory that all rows take."""
        return self._replica.nbytes


class PackedRecord(SimulationRecord):
    """The record of a native fleet, which holds its rows."""

    def __init__(
        self,
        limits: SchedulerConfig,
        replicas: Sequence[PlayedReplica],
        fleet: _native.SimulatedFleet,
        early_stop: EarlyStop | None,
    ) -> None:
        super().__init__(limits, replicas, early_stop)
        self._fleet = fleet
        self._packed = [PackedSteps(fleet.replica(number)) for number in range(len(replicas))]

    def admitted(self, number: int) -> None:  # noqa: ARG002 -- the fleet counts waiting requests
        self.sent += 1

    @property
    def drafted(self) -> list[Drafted]:
        return [Drafted(*self._fleet.replica(number).drafted) for number in range(len(self.replicas))]

    @property
    def steps(self) -> Sequence[RecordTable]:
        return self._packed

    @property
    def nbytes(self) -> int:
        return self._fleet.nbytes + sum(steps.nbytes for steps in self._packed)

    @property
    def requests(self) -> dict[str, Floats]:
        names = (*REQUEST_COLUMNS, "replica")
        return in_order(dict(zip(names, self._fleet.requests(), strict=True)))

    @property
    def gaps(self) -> tuple[Floats, Floats]:
        return together(*self._fleet.gaps())
