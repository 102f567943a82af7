"""Checks of a server after an attack: it answers, and nothing is left over."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from tests.servers import Served, until

GOLDEN = {"model": "tiny", "prompt": "golden", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
SETTLE_SECONDS = 60.0
"""A limit for what never settles; an idle machine takes a fraction of a second."""
RSS_BYTES = 32 * 1024 * 1024
FILES = 2
SANDBOXES = {"corepipe.structured.grammar_sandbox", "corepipe.models.vision.image_sandbox"}
TASKS = 2
ONE = httpx.Limits(max_keepalive_connections=1)
"""Others would stay open between two looks at the server's files."""


@dataclass
class Watch:
    """One server: what it was like at rest, and whether it is so again.  `admin` has the metrics.

    golden: a request that is always answered alike, and where.
    """

    server: Served
    key: str = ""
    admin: str = ""
    golden: tuple[str, dict[str, Any]] = ("/v1/completions", GOLDEN)
    http: httpx.Client = field(init=False)
    refused: int = 0
    """5xx answers that were called for."""

    def __post_init__(self) -> None:
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        self.http = httpx.Client(base_url=self.server.url, headers=headers, timeout=60, limits=ONE)
        self._golden = self._ask()
        self.http.get("/v1/files")  # opens the store
        self._tasks = self._loop_tasks()
        assert until(self._grown, 2 * SETTLE_SECONDS), "it grows by itself"
        self._files = {one.pid: one.num_fds() for one in self._all()}
        self._memory = {one.pid: one.memory_info().rss for one in self._all()}

    def check(self) -> None:
        """Fails unless the server comes to be as it was at rest."""
        now = self._all()
        assert {one.pid for one in now} == set(self._memory), "another set of processes"
        assert until(self._answers, SETTLE_SECONDS), "/health does not answer"
        assert until(self._at_rest, SETTLE_SECONDS), self.metrics()
        assert self._ask() == self._golden, "the golden answer changed"
        for one in now:
            files = self._files[one.pid]
            assert until(lambda: abs(one.num_fds() - files) <= FILES, SETTLE_SECONDS), "open files"  # noqa: B023
            more = one.memory_info().rss - self._memory[one.pid]
            assert more <= RSS_BYTES, f"{more >> 20} MiB more"
        assert until(lambda: abs(self._loop_tasks() - self._tasks) <= TASKS, SETTLE_SECONDS), "open tasks"
        assert "Traceback" not in "".join(self.server.stderr)

    def close(self) -> None:
        self.http.close()

    def metrics(self) -> str:
        return self.http.get(f"{self.admin}/metrics").text

    def _ask(self) -> str:
        path, body = self.golden
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        text: str = told["choices"][0]["text"] if "choices" in told else json.dumps(told["data"])
        return text

    def _loop_tasks(self) -> float:
        """The tasks of the event loop, with the one that answers this request."""
        tasks = sum_of(self.metrics(), "corepipe_event_loop_tasks")
        assert tasks > 0
        return tasks

    def _answers(self) -> bool:
        """True if the server has a place for this client; a flood of others may have taken all."""
        return self.http.get("/health").status_code == 200

    def _at_rest(self) -> bool:
        metrics = self.metrics()
        assert sum_of(metrics, "http_requests_total", 'status="5xx"') == self.refused
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "corepipe_kv_blocks_held")
        return all(sum_of(metrics, name) == 0 for name in names)

    def _grown(self) -> bool:
        """True if its processes, the spare engine too, have done their imports and none waits for a CPU."""
        before = {one.pid: one.memory_info().rss for one in self._all()}
        time.sleep(0.5)
        resting = all(one.status() == psutil.STATUS_SLEEPING for one in self._all())
        return resting and before == {one.pid: one.memory_info().rss for one in self._all()}

    def _all(self) -> list[psutil.Process]:
        """Its processes but those that check constraints and decode images, which come and go."""
        server = psutil.Process(self.server.process.pid)
        return [server, *(one for one in server.children(recursive=True) if not _comes_and_goes(one))]


def _comes_and_goes(process: psutil.Process) -> bool:
    try:
        return not SANDBOXES.isdisjoint(process.cmdline())
    except psutil.Error:  # it has just ended, as only they do
        return True


def sum_of(metrics: str, name: str, label: str = "") -> float:
    """Sum of a metric over its series with a label; 0 where there is none."""
    series = re.findall(rf"^{re.escape(name)}({{.*}})? (\S+)$", metrics, re.MULTILINE)
    return sum(float(value) for labels, value in series if label in labels)
