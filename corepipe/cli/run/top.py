"""The work of `corepipe top`: a picture of a running server, updated on the alternate screen."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Group
from rich.live import Live

from corepipe.cli.output.common import results, seconds, until_interrupted
from corepipe.cli.run.picture import Picture
from corepipe.cli.run.reading import MetricsDelta, MetricsSample, MonitoredServer, UnreachableError
from corepipe.serving.telemetry.observer import History

QUIT = frozenset("qQ")


def run(given: Mapping[str, Any]) -> None:
    """Shows the server until q, Ctrl-C or SIGTERM; once, where there is no terminal or a dumb one.

    Raises UserError where no server answers at the start.
    """
    wait = seconds("--interval", given["interval"]) or 0.0
    console = results()
    with contextlib.closing(MonitoredServer(given["url"], given["api_key"])) as server, until_interrupted():
        view = TopView(server)
        view.look()
        if not console.is_interactive:
            time.sleep(wait)
            console.print(view.look())
            return
        with _keys() as pressed, Live(view.look(), console=console, screen=True, auto_refresh=False) as live:
            while not pressed(wait):
                live.update(view.look(console.height), refresh=True)


class TopView:
    """The last seconds of a server as a picture.  It waits for a server that is gone for a while."""

    def __init__(self, server: MonitoredServer) -> None:
        self._server = server
        self._deployments = server.deployments()
        self._history: History[MetricsSample] = History()

    def look(self, height: int | None = None) -> Group:
        """The picture of now, of at most `height` lines: of several models one below the other."""
        problem = ""
        try:
            reading = self._server.read()
            self._history.add(reading.at, reading)
        except UnreachableError as error:
            problem = str(error)
        change = self._history.change(time.monotonic())
        share = None if height is None else height // len(self._deployments)
        pictures = []
        for one in self._deployments:
            between = None if change is None else MetricsDelta(change.before, change.after, one)
            pictures.append(Picture(self._server.url, one, between, share, problem))
        return Group(*pictures)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yields `pressed(seconds)`: waits so long, or until q is pressed, and says whether it was.

    Meanwhile the terminal gives keys at once and does not show them.
    """
    fd = sys.stdin.fileno()
    if not os.isatty(fd):
        yield _slept
        return
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield _pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _slept(wait: float) -> bool:
    time.sleep(wait)
    return False


def _pressed(wait: float) -> bool:
    fd, until = sys.stdin.fileno(), time.monotonic() + wait
    while select.select([fd], [], [], max(0.0, until - time.monotonic()))[0]:
        keys = os.read(fd, 64).decode(errors="replace")
        if not keys or not QUIT.isdisjoint(keys):
            return True
    return False
