"""Compiles the grammars of waiting requests on threads of its own, so that other requests do not wait for
it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from corepipe.engine.batch.masks import GrammarError, GrammarMatcher
from corepipe.engine.batch.requests import SampledRequest
from corepipe.errors import shown
from corepipe.scheduler.request import Status

THREADS = 2
"""Grammars that are compiled at a time."""

COMPILE_SECONDS = 5.0
"""The most processor time of a grammar that a request waits for; the grammar limits (`masks`) should end
compilations that would take longer."""

MOST_THREADS = 6
"""The most threads, with those that still compile grammars no request waits for any more, and that others
have replaced."""

Compile = Callable[[SampledRequest], GrammarMatcher]
"""Returns the constraint of a request, which has taken the generated tokens. Raises GrammarError."""


@dataclass(slots=True, eq=False)
class GrammarCompilation:
    """constraint or error: the result. spent: returns the seconds that it has taken; None: it has not begun.

    given_up: it has taken too long, and another thread has replaced the one that compiles it.
    """

    request: SampledRequest
    spent: Callable[[], float] | None = None
    constraint: GrammarMatcher | None = None
    error: str | None = None
    given_up: bool = False


def thread_seconds() -> Callable[[], float]:
    """Returns a clock of the processor time of the calling thread, for use by other threads; a clock of real
    time, where the system does not measure that."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


class GrammarPool:
    """Compiles grammars; `on_done` is called, by another thread, when there is a result to take.

    clock: called by a thread of the pool, returns its clock. Threads are started as they are needed and end
    with the process, whatever they compute.
    """

    def __init__(
        self,
        compile_: Compile,
        on_done: Callable[[], None],
        clock: Callable[[], Callable[[], float]] = thread_seconds,
    ) -> None:
        self._compile = compile_
        self._on_done = on_done
        self._clock = clock
        self._queue: SimpleQueue[GrammarCompilation] = SimpleQueue()
        self._done: SimpleQueue[GrammarCompilation] = SimpleQueue()
        self._open: dict[SampledRequest, GrammarCompilation] = {}
        self._threads = 0
        self._given_up = 0

    def __len__(self) -> int:
        """The number of requests with a compilation under way."""
        return len(self._open)

    def start(self, request: SampledRequest) -> None:
        """Compiles a request's grammar."""
        self._open[request] = compilation = GrammarCompilation(request)
        self._queue.put(compilation)
        self._add_thread()

    def patience(self) -> float | None:
        """Returns the seconds until a compilation can have taken too long; None: that cannot happen before
        another one is done."""
        spent = [each.spent() for each in self._open.values() if each.spent is not None]
        return max(0.0, COMPILE_SECONDS - max(spent)) if spent else None

    def take(self) -> list[GrammarCompilation]:
        """Returns the compilations that are done, or have taken too long, since the last call."""
        found = []
        while not self._done.empty():
            done = self._done.get()
            if done.given_up:
                self._given_up -= 1
            elif self._open.pop(done.request, None) is not None:
                found.append(done)
        return found + [self._give_up(each) for each in list(self._open.values()) if _is_late(each)]

    def wait(self) -> None:
        """Waits for one of the compilations under way."""
        if self._open:
            patience = self.patience()
            try:
                self._done.put(self._done.get(timeout=0.1 if patience is None else patience))
            except Empty:
                """Time to look for late compilations, and for new ones."""

    def _give_up(self, each: GrammarCompilation) -> GrammarCompilation:
        """Returns the result of a compilation that has taken too long; a thread is added, so that waiting
        requests do not wait for it as well."""
        each.given_up = True
        self._given_up += 1
        del self._open[each.request]
        self._add_thread()
        return GrammarCompilation(
            each.request,
            error=f"the grammar was not compiled within {COMPILE_SECONDS:g} seconds of processor time",
        )

    def _add_thread(self) -> None:
        """Starts another thread, where there are fewer than the open compilations may have."""
        wanted = min(len(self._open), THREADS) + self._given_up
        if self._threads < min(wanted, MOST_THREADS):
            self._threads += 1
            threading.Thread(target=self._work, name="grammars", daemon=True).start()

    def _work(self) -> None:
        clock = self._clock()
        while True:
            compilation = self._queue.get()
            began = clock()
            compilation.spent = partial(_since, clock, began)
            if compilation.request.status is Status.FINISHED:
                compilation.error = "the request has ended"
            else:
                self._try(compilation)
            self._done.put(compilation)
            self._on_done()

    def _try(self, compilation: GrammarCompilation) -> None:
        try:
            compilation.constraint = self._compile(compilation.request)
        except GrammarError as error:
            compilation.error = str(error)
        except BaseException as error:  # a panic of the library is not an Exception
            compilation.error = f"the grammar cannot be compiled: {shown(str(error), 200)}"


def _is_late(each: GrammarCompilation) -> bool:
    return each.spent is not None and each.spent() >= COMPILE_SECONDS


def _since(clock: Callable[[], float], began: float) -> float:
    return clock() - began
