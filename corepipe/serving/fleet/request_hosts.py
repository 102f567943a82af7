"""The host of each open request, and the hosts that had it before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import asdict

from corepipe.engine.messages import FleetOutput, Output
from corepipe.serving.fleet.remote import RemoteHost


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
