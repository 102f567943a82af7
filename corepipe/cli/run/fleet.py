"""The work of `corepipe fleet`: starts and watches Ray's processes, and reads their state from Ray."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer

from corepipe.cli.output.common import errors, print_json, results, until_interrupted
from corepipe.cli.output.tables import Figures
from corepipe.errors import UserError
from corepipe.serving.fleet.cluster import HOST, MISSING, Cluster, use_token
from corepipe.serving.fleet.unauthenticated import counted

OBJECT_STORE_BYTES = 80_000_000
"""Ray's least and a little: nothing goes through it."""

HEADLESS_SECONDS = 10_000_000
"""For which Ray's processes live without a head: what they compute goes on, see docs/fleet.md."""

LOG_BYTES = 16_000_000
"""Bytes of each of Ray's logs, after which it is rotated."""

HEAD = "head"
"""Name of the head among the machines."""

PAUSE_SECONDS = 3.0
"""Before a machine joins again."""

END_SECONDS = 20.0


def head(given: Mapping[str, Any]) -> None:
    """Runs the head until it is interrupted.  Raises UserError where the port is in use, or Ray does not
    start."""
    host, port = given["host"], given["port"]
    command = _ray(
        "--head", f"--node-name={HEAD}", f"--port={port}", *_address(host), "--include-dashboard=false"
    )
    token = use_token(make=True)
    _check_free(host, port)
    said = f"{host or socket.gethostname()}:{port}"
    errors().print(
        f"started a fleet at {said} (token: {token}); on each machine, run: corepipe fleet join {said}"
    )
    with until_interrupted():
        code = _run(command, partial(_store_unauthenticated, said, HEAD))
        errors().print(f"corepipe: Ray ended with code {code}")
        raise typer.Exit(1)


def join(given: Mapping[str, Any]) -> None:
    """Joins a fleet until it is interrupted; where Ray ends on this machine, or the head is gone, it joins
    again.

    Raises UserError where there is no such fleet, or the name is taken.
    """
    address, called = given["address"], given["name"] or socket.gethostname()
    resources = json.dumps({} if given["front"] else {HOST: 1})
    names = (f"--node-name={called}", f"--resources={resources}")
    command = _ray(f"--address={address}", *_address(given["host"]), *names)
    _check_name(Cluster(address), called)
    errors().print(f"{called} joins the fleet at {address}; Ctrl-C leaves it")
    with until_interrupted():
        while True:
            code = _run(command, partial(_store_unauthenticated, address, called))
            errors().print(f"{called}: Ray ended with code {code}; joining again")
            time.sleep(PAUSE_SECONDS)


def status(given: Mapping[str, Any]) -> None:
    """Prints the machines, and what the servers reported of their hosts.  Raises UserError."""
    cluster = Cluster(given["address"])
    nodes, notes = cluster.nodes(), cluster.notes()
    hosts = {host.node: (note.told.model, host) for note in notes for host in note.told.hosts}
    rows = []
    for node in nodes:
        model, host = hosts.get(node.name, ("", None))
        idle = "head" if node.name == HEAD else "front"
        kind = idle if not node.takes_host else "drained" if node.drained else "free"
        rows.append(
            {
                "node": node.name,
                "address": node.address,
                "state": host.state if host is not None else kind,
                "model": model,
                "open_requests": host.open if host is not None else 0,
            }
        )
    if given["json"]:
        print_json({"nodes": rows})
        return
    shown = (map(str, row.values()) for row in rows)
    results().print(Figures("node", "address", "state", "model", "open requests", rows=shown))


def drain(given: Mapping[str, Any]) -> None:
    """Raises UserError."""
    address, name = given["address"], given["node"]
    cluster = Cluster(address)
    node = cluster.node(name)
    if not node.takes_host:
        raise UserError(f"NODE {name}: this machine computes nothing, so there is nothing to drain")
    cluster.drain(node)
    errors().print(f"{name} gets no more requests; corepipe fleet status {address} shows when it is free")


def _ray(*arguments: str) -> list[str]:
    """Ray's own command.  Raises UserError where it is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(MISSING)
    ray = shutil.which("ray", path=str(Path(sys.executable).parent)) or shutil.which("ray")
    if ray is None:
        raise UserError(MISSING)
    common = (
        "--num-cpus=0",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--disable-usage-stats",
        "--block",
    )
    return [ray, "start", *arguments, *common]


def _address(host: str | None) -> list[str]:
    return [] if host is None else [f"--node-ip-address={host}"]


def _store_unauthenticated(address: str, name: str, count: int) -> None:
    """Raises UserError."""
    Cluster(address).store_unauthenticated(name, count)


def _run(command: list[str], report_unauthenticated: Callable[[int], None]) -> int:
    """Runs Ray's processes in the foreground, to their end; returns its exit code."""
    environment = {
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(HEADLESS_SECONDS),
        "RAY_ROTATION_MAX_BYTES": str(LOG_BYTES),  # untrusted clients write into them
        "RAY_ROTATION_BACKUP_COUNT": "1",
        **os.environ,
    }
    if environment.get("RAY_BACKEND_LOG_LEVEL") == "fatal":  # ours, for commands; a refusal is a warning
        environment["RAY_BACKEND_LOG_LEVEL"] = "warning"
    # A folder of its own: what Ray finds of an earlier fleet in a shared one it takes for a running one.
    with tempfile.TemporaryDirectory(prefix="corepipe-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(  # noqa: S603
            [*command, f"--temp-dir={folder}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        try:
            with counted(Path(folder), report_unauthenticated):
                return process.wait()
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _check_free(host: str | None, port: int) -> None:
    try:
        socket.create_server((host or "", port)).close()
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}") from error


def _check_name(cluster: Cluster, name: str) -> None:
    if any(node.name == name for node in cluster.nodes()):
        raise UserError(f"--name {name}: a machine of the fleet has this name; give another one")
