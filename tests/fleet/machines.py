"""A fleet on one machine, as users start it: a head and joined machines, each with `corepipe fleet`."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil

from tests.fleet.network import Network
from tests.servers import PATIENCE_SECONDS, command, until

ROOT = Path(__file__).parents[2]


class Machines:
    """Machines: `corepipe fleet head` and `join`, each in a process group of its own, on `network`."""

    def __init__(self, port: int, network: Network | None = None) -> None:
        self._network = network
        self.address = f"{self._host('head')}:{port}"
        self._port = port
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # also for servers of this process

    def head(self) -> None:
        self._start("head", "head", "--host", self._host("head"), "--port", self._port)
        assert until(lambda: self.nodes() is not None)

    def join(self, *names: str) -> None:
        for name in names:
            self.start(name)
        assert until(lambda: set(names) <= set(self.nodes() or ()))

    def start(self, name: str) -> None:
        """Starts a machine, which begins to join."""
        self._start(name, "join", self.address, "--host", self._host(name), "--name", name)

    def nodes(self) -> dict[str, str] | None:
        """Returns the states of machines by name; None where no head answers."""
        rows = self._rows()
        return None if rows is None else {row["node"]: row["state"] for row in rows}

    def open_requests(self, name: str) -> int:
        """Returns the open requests of a machine in the fleet's status; 0 where it is not there."""
        return sum(row["open_requests"] for row in self._rows() or () if row["node"] == name)

    def _rows(self) -> list[dict[str, Any]] | None:
        """Returns the rows of `corepipe fleet status`; None where no head answers."""
        answer = self.ask("status", self.address, "--json")
        return None if answer.returncode else json.loads(answer.stdout)["nodes"]

    def ask(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a `corepipe fleet` command to its end."""
        return subprocess.run(
            command("fleet", *arguments),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
            env={**os.environ, **environment},
        )

    def processes(self, name: str, title: str) -> list[psutil.Process]:
        """Returns the processes of a machine whose command line has `title`."""
        found = []
        for each in psutil.Process(self._started[name].pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if title in " ".join(each.cmdline()):
                    found.append(each)
        return sorted(found, key=lambda each: each.create_time())

    def one(self, name: str, title: str) -> psutil.Process:
        """Returns the oldest of them, once there is one."""
        assert until(lambda: self.processes(name, title)), title
        return self.processes(name, title)[0]

    def memory(self, name: str) -> dict[str, float]:
        """Returns the megabytes (PSS) of a machine's processes, by kind."""
        found: dict[str, float] = {}
        for each in psutil.Process(self._started[name].pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = " ".join(each.cmdline())
                kind = "engines" if "engine.process" in words else "host" if "HostActor" in words else "Ray"
                found[kind] = found.get(kind, 0.0) + each.memory_full_info().pss / 1e6
        return found

    def end(self, name: str) -> None:
        """Ends a machine as Ctrl-C does."""
        process = self._started.pop(name)
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            for each in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        process.kill()
        process.wait()

    def close(self) -> None:
        for name in reversed(list(self._started)):
            self.end(name)

    def _host(self, name: str) -> str:
        return "127.0.0.1" if self._network is None else self._network.address(name)

    def _start(self, name: str, *arguments: object) -> None:
        inside = [] if self._network is None else self._network.inside(name)
        log = (ROOT / "build" / f"fleet-{name}.log").open("wb")
        with log:
            self._started[name] = subprocess.Popen(
                [*inside, *command("fleet", *arguments)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
