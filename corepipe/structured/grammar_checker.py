"""The checker of untrusted grammars: in processes of their own beside the event loop, with a cache."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter

import msgspec

from corepipe.errors import UserError
from corepipe.sandbox import ANSWER_SECONDS, EndedError, SandboxProcess
from corepipe.structured.constraints import Constraint, ConstraintError, too_complex, what
from corepipe.structured.spelling import ANY_TEXT, Spelling

MODULE = "corepipe.structured.grammar_sandbox"
CPU_SECONDS = 1.0
"""The processor time for one constraint; nearly all real schemas take a few milliseconds."""
PROCESSES = 2
"""The most processes; as many malicious constraints at once delay other constraints, and nothing else."""
WAIT_SECONDS = 10.0
"""The time in which a constraint must be checked, its wait for a process included."""

MOST_KNOWN = 1024
MOST_BYTES = 16 << 20
"""The most bytes of remembered verdicts."""


class GrammarQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question to a process: the constraint, and what the model can write."""

    constraint: Constraint
    spelling: Spelling = ANY_TEXT


class GrammarVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The grammar of a constraint, or its fault as the fields of a ConstraintError.

    seconds: the time that the check took; 0 for a remembered verdict.
    """

    grammar: str = ""
    error: str = ""
    param: str = ""
    code: str = ""
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class _Pending:
    """A constraint that is being checked or waits for a process, as long as a request waits for it."""

    work: Future[tuple[GrammarVerdict, bool]]
    task: asyncio.Task[GrammarVerdict]
    waiting: int = 0


class GrammarChecker:
    """Checks constraints in processes that start when they are first needed, and again after one was ended.

    spelling: returns what the model can write; called once, in a thread, when the first process starts.
    """

    def __init__(
        self, cpu_seconds: float = CPU_SECONDS, spelling: Callable[[], Spelling] = lambda: ANY_TEXT
    ) -> None:
        self._cpu_seconds = cpu_seconds
        self._tell_spelling = spelling
        self._threads = ThreadPoolExecutor(PROCESSES, "grammars")
        self._own = threading.local()
        self._known = _Known(MOST_KNOWN, MOST_BYTES)
        self._pending: dict[bytes, _Pending] = {}
        self._sandboxes: set[SandboxProcess] = set()

    async def check(self, constraint: Constraint) -> GrammarVerdict:
        """Returns the verdict on a constraint.  Raises TimeoutError if waiting and checking take too long."""
        key = hashlib.sha256(msgspec.msgpack.encode(constraint)).digest()
        if (known := self._known.get(key)) is not None:
            return known
        pending = self._pending.get(key) or self._begin(key, constraint)
        pending.waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await asyncio.shield(pending.task)  # other requests may wait for it, too
        finally:
            pending.waiting -= 1
            if (
                not pending.waiting and pending.work.cancel()
            ):  # it has not begun: other constraints need not wait for it
                self._forget(key, pending)

    @cached_property
    def _spelling(self) -> Spelling:
        return self._tell_spelling()

    def close(self) -> None:
        """Ends the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for sandbox in list(self._sandboxes):
            sandbox.close()

    def _begin(self, key: bytes, constraint: Constraint) -> _Pending:
        work = self._threads.submit(self._ask, constraint)
        pending = _Pending(work, asyncio.ensure_future(self._found(key, work)))
        pending.task.add_done_callback(lambda _: self._forget(key, pending))
        self._pending[key] = pending
        return pending

    def _forget(self, key: bytes, pending: _Pending) -> None:
        if self._pending.get(key) is pending:
            del self._pending[key]

    async def _found(self, key: bytes, work: Future[tuple[GrammarVerdict, bool]]) -> GrammarVerdict:
        verdict, lasting = await asyncio.wrap_future(work)
        if lasting:
            self._known.put(key, verdict)
        return verdict

    def _ask(self, constraint: Constraint) -> tuple[GrammarVerdict, bool]:
        """Returns the verdict, and whether another check would give the same."""
        began = perf_counter()
        sandbox: SandboxProcess | None = getattr(self._own, "sandbox", None)
        if sandbox is None:
            sandbox = self._own.sandbox = SandboxProcess(MODULE, self._cpu_seconds)
            self._sandboxes.add(sandbox)
        try:
            question = GrammarQuestion(constraint, self._spelling)  # while the process starts
            verdict = sandbox.ask(msgspec.msgpack.encode(question), GrammarVerdict, ANSWER_SECONDS)
        except EndedError as error:
            self._own.sandbox = None
            self._sandboxes.discard(sandbox)
            failure = too_complex(f"{what(constraint)}: it is too complex: it {error}.", constraint.field)
            return failed(failure, perf_counter() - began), error.exhausted
        return msgspec.structs.replace(verdict, seconds=perf_counter() - began), True


class _Known:
    """The cache of the verdicts that were used last."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._verdicts: OrderedDict[bytes, GrammarVerdict] = OrderedDict()
        self._bytes = 0

    def get(self, key: bytes) -> GrammarVerdict | None:
        if key not in self._verdicts:
            return None
        self._verdicts.move_to_end(key)
        return self._verdicts[key]

    def put(self, key: bytes, verdict: GrammarVerdict) -> None:
        if key in self._verdicts:
            return
        self._verdicts[key] = msgspec.structs.replace(verdict, seconds=0.0)
        self._bytes += _size(verdict)
        while len(self._verdicts) > self._most or self._bytes > self._most_bytes:
            _, oldest = self._verdicts.popitem(last=False)
            self._bytes -= _size(oldest)


def _size(verdict: GrammarVerdict) -> int:
    """Returns the most bytes that a verdict takes, at 4 a character."""
    return 4 * (len(verdict.grammar) + len(verdict.error))


def failed(error: UserError, seconds: float = 0.0) -> GrammarVerdict:
    """Makes the verdict of an error."""
    code = error.code if isinstance(error, ConstraintError) else "unsupported_value"
    return GrammarVerdict(error=error.message, param=error.param or "", code=code, seconds=seconds)
