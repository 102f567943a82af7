"""Plays a workload against a server, in an open or a closed loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from itertools import count
from time import perf_counter

from corepipe.bench.client import ActiveSession, LoadClient, PreparedRequest
from corepipe.bench.outcome import RequestOutcome
from corepipe.bench.recorder import Recorder
from corepipe.workload.workload import Session, Workload

RETRY_SECONDS = 1.0
"""Pause of a user after a failed request, as in a simulation: a server may answer errors at once."""

TIMER = 1e-3
"""Seconds by which timers of event loops may be late."""


@dataclass(frozen=True, slots=True)
class RunSpan:
    """Times of a run's start, its last due request, and its last answer: seconds of `perf_counter`."""

    start: float
    last_due: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


class LoadRun:
    """One run of a workload; `stop` ends it early, and requests in progress are then unfinished."""

    def __init__(self, workload: Workload, client: LoadClient, recorder: Recorder) -> None:
        self._workload = workload
        self._client = client
        self._recorder = recorder
        self._sessions = workload.sessions()
        self._numbers = count()
        self._tasks: set[asyncio.Task[object]] = set()
        self._group = asyncio.TaskGroup()
        self._stopped = False
        self._last_due = 0.0
        self.started = 0.0
        self.in_flight = 0

    @property
    def tokens(self) -> int:
        """Output tokens so far; of answers in progress, their chunks."""
        return self._recorder.output_tokens + self._client.chunks_under_way

    async def play(self) -> RunSpan:
        """Sends everything and waits for the last answer, once.  Raises UserError for an unreadable trace."""
        self.started = self._last_due = perf_counter()
        try:
            async with self._group:
                self._begin()
        except BaseExceptionGroup as group:  # a workload that cannot be read; one error is enough
            raise group.exceptions[0] from group
        ends = [outcome.ended for outcome in self._recorder.outcomes]
        return RunSpan(self.started, self._last_due, max(ends, default=perf_counter()))

    def _begin(self) -> None:
        if self._stopped:
            return
        users = self._workload.users
        for play in [self._arrivals()] if users is None else [self._user() for _ in range(users)]:
            self._spawn(play)

    def stop(self) -> None:
        """Sends nothing more and disconnects."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    def _spawn(self, play: Coroutine[None, None, object]) -> None:
        task = self._group.create_task(play)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _arrivals(self) -> None:
        """Plays an open loop: sessions start when they are due, regardless of earlier ones."""
        for session in self._sessions:
            due = self.started + (session.start or 0.0)
            talk = self._talk(session)
            first = self._client.prepare(talk, 0)
            await until(due)
            self._spawn(self._session(talk, due, first))

    async def _user(self) -> None:
        """Plays one user of a closed loop: one session after the other."""
        workload = self._workload
        end = self.started + workload.duration if workload.duration is not None else None
        due = self.started
        while end is None or due <= end:
            session = next(self._sessions, None)
            if session is None:
                return
            talk = self._talk(session)
            request = self._client.prepare(talk, 0)
            fine = await self._session(talk, max(due, perf_counter()), request)
            if self._stopped:
                return
            due = perf_counter() + (workload.think_seconds if fine else RETRY_SECONDS)
            await asyncio.sleep(due - perf_counter())

    def _talk(self, session: Session) -> ActiveSession:
        return ActiveSession(session, next(self._numbers))

    async def _session(self, talk: ActiveSession, due: float, request: PreparedRequest) -> bool:
        """Sends all turns, each after the answer to the one that it follows; returns False where one failed
        and ended the session.

        Where several follow one turn, all but the first are sent by tasks of their own.
        """
        while True:
            outcome = await self._send(request, due)
            if outcome.end != "completed":
                return outcome.end == "cancelled"
            talk.answers[talk.session.turns[request.turn].answer] = outcome.text
            ended = perf_counter()
            following = talk.session.following(request.turn)
            for turn in following[1:]:
                self._spawn(self._branch(talk, turn, ended))
            if not following:
                return True
            due, request = await self._next(talk, following[0], ended)

    async def _branch(self, talk: ActiveSession, turn: int, ended: float) -> None:
        """Sends a turn that follows one that ended at `ended`, and all turns after it."""
        due, request = await self._next(talk, turn, ended)
        await self._session(talk, due, request)

    async def _next(self, talk: ActiveSession, turn: int, ended: float) -> tuple[float, PreparedRequest]:
        """Waits until a turn is due, after one that ended at `ended`; returns its due time and request."""
        due = ended + talk.session.turns[turn].think_seconds
        request = self._client.prepare(talk, turn)
        await asyncio.sleep(due - perf_counter())
        return due, request

    async def _send(self, request: PreparedRequest, due: float) -> RequestOutcome:
        self._last_due = max(self._last_due, due)
        self.in_flight += 1
        outcome = await self._client.send(request, due)
        self.in_flight -= 1
        self._recorder.take(outcome)
        return outcome


async def until(due: float) -> None:
    """Sleeps until a time, to some microseconds.

    Timers have a resolution of a millisecond, which is much of a fast server's time to first token: the last
    millisecond is spent in iterations of the event loop, which reads answers meanwhile.
    """
    await asyncio.sleep(due - TIMER - perf_counter())
    while perf_counter() < due:
        await asyncio.sleep(0)
