"""Coding agents, each at one task: reading a file and writing another, by the calls of a scripted model.

    python -m tests.clients.agents codex      # what `tests.clients.run codex` starts

An agent has a home and a working directory of its own, and its telemetry and updates are off.  The server
records what it is asked, so that the rows can tell what the agent sent.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
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
REQUESTS = re.compile(r'^http_requests_total{handler="([^"]*)",.*status="(\dxx)"} (\S+)$', re.MULTILINE)

Rows = Iterator[tuple[str, bool, object]]
"""Titles, whether they hold, and what there was instead."""


def rows(agent: Agent, root: Path) -> Rows:
    """Runs an agent at its task, against a server of a model with its script, and yields the rows."""
    marks = {"<home>": str(root / "home"), "<work>": str(root / "work")}
    work, tapes = root / "work", root / "tapes"
    work.mkdir()
    (work / "notes.txt").write_text(NOTES)
    turns = {at: _filled(text, marks) for at, text in agent.script.turns.items()}
    model = write_scripted(root / MODEL, replace(agent.script, turns=turns))
    flags = ("--served-model-name", MODEL, "--max-model-len", CONTEXT, "--record", tapes, *agent.flags)
    with served(model, *flags, anew=True) as server:
        status, printed = _ended(agent, work, {**marks, "<url>": server.url})
        told = REQUESTS.findall(server.get("/metrics").text)
        server.end()
    requests = {f"{route} {kind}": float(count) for route, kind, count in told}
    asked = b"".join(
        file_format.read(tape.read_bytes(), LARGEST_TAPE).request.body for tape in tapes.glob("*.yaml")
    )
    missing = [text for text in agent.shown if text.encode() not in asked]
    yield f"reads a file, and sends it to {agent.route}", not missing, f"not sent: {missing}"
    loud = work / "loud.txt"
    yield "writes another file", loud.exists() and loud.read_text() == LOUD, list(work.iterdir())
    refused = [route for route in requests if not route.endswith("2xx")]
    yield "is refused nothing", f"{agent.route} 2xx" in requests and not refused, requests
    yield "ends with the model's last words", status == 0 and DONE in printed, printed[-600:]


def _filled(text: str, marks: Mapping[str, str]) -> str:
    """Returns a text of a task with the directories, and the server's address, in it."""
    for mark, value in marks.items():
        text = text.replace(mark, value)
    return text


def _ended(agent: Agent, work: Path, marks: Mapping[str, str]) -> tuple[int, str]:
    """Returns an agent's exit status and what it printed; ends what it leaves running."""
    for path, text in agent.files.items():
        file = Path(_filled(path, marks))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_filled(text, marks))
    environment = {
        "PATH": f"{NODE_BIN}{os.pathsep}{os.environ['PATH']}",
        "HOME": marks["<home>"],
        "NO_PROXY": "127.0.0.1",
        **{name: _filled(value, marks) for name, value in agent.environment.items()},
    }
    process = subprocess.Popen(
        [agent.program, *(_filled(each, marks) for each in agent.arguments)],
        cwd=work,
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


def main(name: str) -> None:
    agent = next(one for one in AGENTS if one.name == name)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        (Path(folder) / "home").mkdir()
        for title, holds, instead in rows(agent, Path(folder).resolve()):
            why = "" if holds else " ".join(str(instead).split())
            RowResult(title, PASSED if holds else FAILED, why).tell()


if __name__ == "__main__":
    main(sys.argv[1])
