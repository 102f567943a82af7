"""A load test from start to end: a server, prompts, and runs of workloads against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from time import process_time
from typing import TYPE_CHECKING

from corepipe.bench.client import LoadClient, RequestSettings
from corepipe.bench.prompts import Speller
from corepipe.bench.recorder import Recorder
from corepipe.bench.report import Conditions, HostEffort, LoadReport
from corepipe.bench.runner import LoadRun
from corepipe.bench.setup import PromptSetup
from corepipe.bench.target import DevicePace, Http, ServerIdentity, pace
from corepipe.workload.slo import Slo
from corepipe.workload.workload import Session, Workload, with_adapters

if TYPE_CHECKING:  # slow to import, and most load tests need none
    from corepipe.models.text.tokenizer import Tokenizer

WARM_USERS = 8
"""Concurrent requests while the server warms up."""


@dataclass(frozen=True, slots=True)
class LoadTestSettings:
    """The settings that all runs of a load test share.  salt: seed of the words in prompts."""

    asking: RequestSettings
    slo: Slo
    salt: str
    keep_stamps: bool = False
    tokenizer: tuple[str, Tokenizer] | None = None


@dataclass(slots=True)
class LoadTest:
    """Plays workloads, one at a time.  `watch` is called for every run that begins."""

    http: Http
    found: ServerIdentity
    setup: PromptSetup
    settings: LoadTestSettings
    watch: Callable[[LoadRun, Recorder, Workload, str], None]
    stopped: bool = False
    _run: LoadRun | None = None
    _played: int = 0

    def stop(self) -> None:
        """Ends the current run; the report has the requests measured so far."""
        self.stopped = True
        if self._run is not None:
            self._run.stop()

    async def warm_up(self, workload: Workload, requests: int) -> None:
        """Sends the first requests of a workload with different words, and discards the results."""

        def first() -> Iterator[Session]:
            return (replace(session, start=None) for session in islice(workload.sessions(), requests))

        users = min(requests, WARM_USERS)
        await self.play(Workload(first, users=users, requests=requests), "warming up")

    async def play(self, workload: Workload, name: str = "") -> LoadReport:
        """Plays a workload to its end, or until `stop`."""
        settings = self.settings
        if names := settings.asking.adapters:
            workload = with_adapters(workload, len(names), settings.asking.seed)
        asking = replace(settings.asking, run_id=f"{settings.asking.run_id}-{self._played}")
        recorder = Recorder(settings.slo, keep_stamps=settings.keep_stamps)
        client = LoadClient(self.http, asking, self._speller(), self._count)
        self._run = LoadRun(workload, client, recorder)
        self._played += 1
        self.watch(self._run, recorder, workload, name)
        before, cpu = await self._pace(), process_time()
        if self.stopped:
            self._run.stop()
        span = await self._run.play()
        cpu = process_time() - cpu
        after = await self._pace()
        steps, late = max(0, after.steps - before.steps), max(0, after.late_steps - before.late_steps)
        load = HostEffort(cpu, steps, late, after.time_scale_needed)
        return LoadReport(self._conditions(workload), recorder, span, load, self.stopped)

    def _speller(self) -> Speller:
        """Returns a speller with words that no other run uses, so that no prefix cache holds them."""
        return self.setup.speller.salted(f"{self.settings.salt} {self._played}")

    @property
    def _count(self) -> Callable[[str], int] | None:
        if self.settings.tokenizer is None:
            return None
        _, tokenizer = self.settings.tokenizer
        return lambda text: len(tokenizer.encode(text, add_special_tokens=False))

    async def _pace(self) -> DevicePace:
        return await pace(self.http) if self.found.is_corepipe else DevicePace()

    def _conditions(self, workload: Workload) -> Conditions:
        settings = self.settings
        return Conditions(
            url=self.http.target.url,
            model=self.found.model,
            api=settings.asking.api,
            prompts=self.setup.prompts,
            tokenizer=settings.tokenizer and settings.tokenizer[0],
            workload=workload.about,
            salt=settings.salt,
            slo=settings.slo,
            server=self.found.placement,
        )
