"""Requests to Ray's control plane from outside of the cluster: nodes, and a few notes.

All uses of what is not Ray's public API are here: its client of the GCS, which Ray's own commands use too.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from corepipe.errors import UserError
from corepipe.serving.fleet.manager_messages import FrontStatus

HOST = "corepipe_host"
"""The Ray resource of a node that takes a host; such a node has one unit."""

NAMESPACE = "corepipe"
NOTES = b"corepipe"
PATIENCE_SECONDS = 10.0
REACH_SECONDS = 3.0

STALE_SECONDS = 10.0
"""The time without a note after which a front is taken to be gone."""

MISSING = "a fleet needs corepipe[ray]: pip install 'corepipe[ray]'"

TOKEN_FILE = Path("~/.ray/auth_token")


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the fleet.  takes_host: False for the head."""

    id: str
    name: str
    address: str
    alive: bool
    takes_host: bool
    drained: bool


class FrontNote(msgspec.Struct, frozen=True):
    """The note of a front about its hosts.  at: when it was left, in seconds of its machine's wall clock."""

    at: float
    told: FrontStatus


def use_token(*, make: bool = False) -> str:
    """Makes Ray in this process and its children require a token.  Returns where the token is from.

    A cluster without one runs anybody's code.  Raises UserError where there is none and `make` is false.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # corepipe reports errors itself
    if os.environ["RAY_AUTH_MODE"] != "token":
        return f"RAY_AUTH_MODE={os.environ['RAY_AUTH_MODE']}"
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN"
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or TOKEN_FILE).expanduser()
    if not path.exists():
        if not make:
            raise UserError(f"the fleet's token is missing: copy {path} from the machine of the head")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    return str(path)


def parse(address: str, flag: str) -> tuple[str, int]:
    """Splits HOST:PORT.  Raises UserError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"{flag} {address}: give the head's HOST:PORT, as 10.0.0.1:6379")
    return host.strip("[]"), int(port)


class Cluster:
    """The fleet whose head is at `address`; `flag` names the address in errors.

    Raises UserError where no head answers there, or it does not take our token.
    """

    def __init__(self, address: str, flag: str = "ADDRESS") -> None:
        self._said = f"{flag} {address}"
        _reach(*parse(address, flag), self._said)
        use_token()  # before Ray is imported, which reads it once
        try:
            raylet = importlib.import_module("ray._raylet")  # of the extra
        except ImportError as error:
            raise UserError(MISSING) from error
        with self._asking():
            self._gcs: Any = raylet.GcsClient(address=address)

    def nodes(self) -> list[Node]:
        """Returns the nodes that are alive, in the order of their names.  Raises UserError."""
        with self._asking():
            known = self._gcs.get_all_node_info(timeout=PATIENCE_SECONDS)
            drained = set(self._gcs.internal_kv_keys(b"drained/", NOTES, timeout=PATIENCE_SECONDS))
        found = [
            Node(
                key.hex(),
                info.node_name,
                info.node_manager_address,
                info.state == 0,
                HOST in info.resources_total,
                _drained(key.hex()) in drained,
            )
            for key, info in known.items()
        ]
        return sorted((node for node in found if node.alive), key=lambda node: node.name)

    def node(self, name: str) -> Node:
        """Finds a node by its name, or by the beginning of its id.  Raises UserError."""
        nodes = self.nodes()
        found = [node for node in nodes if node.name == name or (len(name) >= 6 and node.id.startswith(name))]
        if len(found) != 1:
            there = ", ".join(node.name for node in nodes if node.takes_host) or "none"
            raise UserError(f"NODE {name}: no machine of the fleet has this name (its machines: {there})")
        return found[0]

    def drain(self, node: Node) -> None:
        """Marks a node as drained: no host may be on it any more.  Raises UserError."""
        with self._asking():
            self._put(_drained(node.id), b"1")

    def leave_note(self, front: str, told: FrontStatus) -> None:
        """Stores the status of a front.  Raises UserError."""
        note = msgspec.json.encode(FrontNote(time.time(), told))
        with self._asking():
            self._put(f"front/{front}".encode(), note)

    def notes(self) -> list[FrontNote]:
        """Returns the recent notes of fronts.  Raises UserError."""
        with self._asking():
            keys = self._gcs.internal_kv_keys(b"front/", NOTES, timeout=PATIENCE_SECONDS)
            texts = [self._gcs.internal_kv_get(key, NOTES, timeout=PATIENCE_SECONDS) for key in keys]
        notes = [msgspec.json.decode(text, type=FrontNote) for text in texts if text]
        return [note for note in notes if abs(time.time() - note.at) < STALE_SECONDS]

    def store_unauthenticated(self, node: str, count: int) -> None:
        """Stores how many requests without a token this machine has refused.  Raises UserError."""
        with self._asking():
            self._put(f"strangers/{node}".encode(), str(count).encode())

    def unauthenticated(self) -> dict[str, int]:
        """Returns those numbers by the names of the machines.  Raises UserError."""
        with self._asking():
            keys = self._gcs.internal_kv_keys(b"strangers/", NOTES, timeout=PATIENCE_SECONDS)
            texts = {key: self._gcs.internal_kv_get(key, NOTES, timeout=PATIENCE_SECONDS) for key in keys}
        return {key.decode().partition("/")[2]: int(text) for key, text in texts.items() if text}

    def _put(self, key: bytes, value: bytes) -> None:
        overwrite = True
        self._gcs.internal_kv_put(key, value, overwrite, NOTES, timeout=PATIENCE_SECONDS)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        known = importlib.import_module("ray.exceptions")  # of the extra
        try:
            yield
        except known.AuthenticationError as error:
            raise UserError(f"{self._said}: the fleet does not take this token; copy the head's") from error
        except (known.RayError, known.RpcError) as error:
            raise UserError(f"{self._said}: no head of a fleet answers ({type(error).__name__})") from error


def check_fleet(address: str) -> None:
    """Checks `serve --fleet` as far as possible without waiting.  Raises UserError."""
    host, port = parse(address, "--fleet")
    if importlib.util.find_spec("ray") is None:
        raise UserError(f"--fleet: {MISSING}")
    _reach(host, port, f"--fleet {address}")
    use_token()


def _reach(host: str, port: int, said: str) -> None:
    """Checks that an address accepts connections; Ray would try for most of a minute.  Raises UserError."""
    try:
        socket.create_connection((host, port), REACH_SECONDS).close()
    except OSError as error:
        raise UserError(f"{said}: nothing answers there ({error.strerror or error})") from error


def _drained(node_id: str) -> bytes:
    return f"drained/{node_id}".encode()
