"""Coding agents, each at one task: reading a file and writing another, by the calls of a scripted model.

    python -m tests.clients.agents codex      # what `tests.clients.run codex` starts

An agent has a home and a working directory of its own, and its telemetry and updates are off.  The server
records what it is asked, so that the rows can tell what the agent sent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from corepipe.serving.api.cassettes import file_format
from tests.clients.agent_tasks import AGENTS, CONTEXT, DONE, LOUD, MODEL, NODE_BIN, NOTES, Agent
from tests.clients.rows import FAILED, PASSED, RowResult
from tests.clients.scripted import write_scripted
from tests.servers import served

LIMIT_SECONDS = 300
"""The time limit for an agent that hangs."""
LARGEST_TAPE = 1 << 25


@dataclass(frozen=True)
class Place:
    """The directories of a run."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def tapes(self) -> Path:
        return self.root / "tapes"

    def filled(self, text: str, url: str = "") -> str:
        """Returns a text with the directories, and the server's address, in it."""
        for mark, value in (("<url>", url), ("<home>", str(self.home)), ("<work>", str(self.work))):
            text = text.replace(mark, value)
        return text


@dataclass(frozen=True)
class Ended:
    """A run that is over: what the agent printed, and how many requests had which status on which route."""

    status: int
    printed: str
    requests: dict[str, int]


def run(agent: Agent, place: Place) -> Ended:
    """Runs an agent at its task, against a server of a model with its script."""
    place.home.mkdir()
    place.work.mkdir()
    (place.work / "notes.txt").write_text(NOTES)
    script = replace(agent.script, turns={at: place.filled(text) for at, text in agent.script.turns.items()})
    model = write_scripted(place.root / MODEL, script)
    flags = ("--served-model-name", MODEL, "--max-model-len", CONTEXT, "--record", place.tapes, *agent.flags)
    with served(model, *flags, anew=True) as server:
        for path, text in agent.files.items():
            file = Path(place.filled(path))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(place.filled(text, server.url))
        status, printed = _ended(agent, place, server.url)
        ended = Ended(status, printed, _requests(server.get("/metrics").text))
        server.end()
    return ended


def _ended(agent: Agent, place: Place, url: str) -> tuple[int, str]:
    """Returns an agent's exit status and what it printed; ends what it leaves running."""
    command = [str(agent.program), *(place.filled(each, url) for each in agent.arguments)]
    environment = {
        "PATH": f"{NODE_BIN}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(place.home),
        "NO_PROXY": "127.0.0.1",
        **{name: place.filled(value, url) for name, value in agent.environment.items()},
    }
    process = subprocess.Popen(
        command,
        cwd=place.work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        printed = "it did not end"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait(), printed


def _requests(metrics: str) -> dict[str, int]:
    """Returns the counts of requests by route and class of status."""
    counts = {}
    for line in metrics.splitlines():
        if line.startswith("http_requests_total{") and 'handler="/metrics"' not in line:
            labels = line.split('"')
            counts[f"{labels[1]} {labels[5]}"] = int(float(line.rsplit(" ", 1)[1]))
    return counts


def _asked(place: Place) -> Iterator[bytes]:
    """Yields the bodies of the requests that were recorded."""
    for tape in place.tapes.glob("*.yaml"):
        yield file_format.read(tape.read_bytes(), LARGEST_TAPE).request.body


def rows(agent: Agent, place: Place, ended: Ended) -> Iterator[tuple[str, bool, object]]:
    """Yields titles, whether they hold, and what there was instead."""
    loud = place.work / "loud.txt"
    there = loud.read_text() if loud.exists() else "nothing"
    asked = b"".join(_asked(place))
    missing = [text for text in agent.shown if text.encode() not in asked]
    yield f"reads a file, and sends it to {agent.route}", not missing, f"not sent: {missing}"
    yield "writes another file", there == LOUD, there
    answered = ended.requests.get(f"{agent.route} 2xx", 0) > 0 and not any(
        route.endswith(("4xx", "5xx")) for route in ended.requests
    )
    yield "is refused nothing", answered, ended.requests
    yield (
        "ends with the model's last words",
        ended.status == 0 and DONE in ended.printed,
        ended.printed[-600:],
    )


def main(name: str) -> int:
    agent = next(one for one in AGENTS if one.name == name)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = Place(Path(folder).resolve())
        for title, holds, instead in rows(agent, place, run(agent, place)):
            RowResult(
                title, PASSED if holds else FAILED, "" if holds else " ".join(str(instead).split())
            ).tell()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
