"""Grammars that are compiled while their requests wait: no other request waits, nothing is lost, and it
ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from queue import Queue
from typing import Any

import pytest
from llguidance import LLMatcher

from corepipe.engine.batch import grammar_pool
from corepipe.engine.batch.grammar_pool import GrammarCompilation, GrammarPool
from corepipe.engine.batch.masks import GrammarCompiler, GrammarError, GrammarMatcher
from corepipe.engine.batch.requests import SampledRequest
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Abort
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.models import registry
from corepipe.neuron.timing.clock import HostClock, VirtualClock
from tests.engine.engine_support import by_request, deployment, run, submit
from tests.servers import TINY, until

ANYTHING = LLMatcher.grammar_from_regex(r"(?s:.*)")


@dataclass
class Gate:
    """Stops the threads that compile, until it is opened."""

    opened: threading.Event = field(default_factory=threading.Event)
    entered: list[str] = field(default_factory=list)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    compile_ = GrammarCompiler.constraint

    def held_up(self: GrammarCompiler, grammar: str, generated: Any = ()) -> GrammarMatcher:
        gate.entered.append(grammar)
        gate.opened.wait()
        return compile_(self, grammar, generated)

    monkeypatch.setattr(GrammarCompiler, "constraint", held_up)
    yield gate
    gate.opened.set()


def driver(clock: Any = None, **limits: int) -> Driver:
    """A driver whose tokens mean nothing to grammars: they allow all of them, and get none of them."""
    return Driver(replace(deployment(clock=clock or HostClock(), **limits), tokenizer=tokenizer))


def tokenizer() -> Any:
    return registry.load(TINY).tokenizer()


def test_others_go_on_while_a_grammar_is_compiled(gate: Gate) -> None:
    engine = driver()
    engine.handle(submit("waits", grammar=ANYTHING, max_tokens=1))
    engine.handle(submit("free"))
    news = []
    while not news or news[-1].finish_reason is None:
        engine.complete()
        engine.release()
        engine.submit()
        news += engine.outputs()
    assert {output.id for output in news} == {"free"}
    (stats,) = engine.stats()
    assert (stats.waiting, stats.held, stats.running) == (1, 1, 0)
    assert engine.busy
    gate.opened.set()
    assert by_request(run(engine))["waits"][-1].finish_reason is not None
    (stats,) = engine.stats()
    assert (stats.waiting, stats.held) == (0, 0)


def test_it_has_its_place_in_the_queue(gate: Gate) -> None:
    engine = driver(max_queued_requests=2)
    for name in ("first", "second", "third"):
        engine.handle(submit(name, grammar=ANYTHING))
    engine.handle(submit("fourth"))
    refused = engine.outputs()
    assert [(output.id, output.error_kind) for output in refused] == [
        ("third", "overloaded"),
        ("fourth", "overloaded"),
    ]
    engine.handle(submit("again", grammar=ANYTHING, replay=True, generated=[]))
    assert not engine.outputs(), "it had its place"
    engine.abort_all()


def test_an_abort_meanwhile_ends_it_once(gate: Gate) -> None:
    engine = driver()
    for name in "abc":
        engine.handle(submit(name, grammar=ANYTHING))
    assert until(lambda: len(gate.entered) == grammar_pool.THREADS)
    engine.handle(Abort(["a", "c"]))
    news = engine.outputs()
    assert [(output.id, output.finish_reason) for output in news] == [("a", "abort"), ("c", "abort")]
    gate.opened.set()
    assert {output.id for output in run(engine)} == {"b"}
    assert len(gate.entered) == grammar_pool.THREADS, "what nobody waits for is not compiled"
    engine.handle(submit("d", grammar=ANYTHING))
    engine.abort_all()
    assert {output.id for output in run(engine)} == {"d"}
    assert not engine.busy


def test_in_virtual_time_it_takes_none() -> None:
    """The next event must depend on nothing that the host does."""

    def told() -> list[Any]:
        engine = driver(VirtualClock())
        engine.handle(submit("a", max_tokens=6))
        engine.turn()
        engine.handle(submit("b", grammar=ANYTHING, max_tokens=1))
        assert engine.stats()[0].held == 0
        return [(output.id, output.tokens, output.device) for output in run(engine)]

    assert told() == told()


def request(name: str, grammar: str = "") -> SampledRequest:
    return SampledRequest(name, [1], 1, sampling=TokenSampling(), seed=0, grammar=grammar)


def collected(pool: GrammarPool, count: int) -> list[GrammarCompilation]:
    found: list[GrammarCompilation] = []
    while len(found) < count:
        pool.wait()
        found += pool.take()
    return found


def test_what_takes_too_long_is_given_up_and_holds_nobody_up() -> None:
    """There are more such compilations than threads; the clock is the test's."""
    now, endless, calls = [0.0], threading.Event(), []

    def compile_(asked: SampledRequest) -> GrammarMatcher:
        if asked.grammar == "bomb":
            endless.wait()
        if asked.grammar == "panics":
            raise BaseException("a panic")
        raise GrammarError(f"{asked.grammar} is wrong")

    pool = GrammarPool(compile_, lambda: calls.append(None), lambda: lambda: now[0])
    bombs = [request(f"bomb {i}", "bomb") for i in range(grammar_pool.THREADS)]
    for bomb in bombs:
        pool.start(bomb)
    pool.start(request("late", "late"))
    assert until(lambda: pool.patience() is not None)
    assert until(lambda: sum(each.spent is not None for each in pool._open.values()) == grammar_pool.THREADS)
    now[0] = grammar_pool.COMPILE_SECONDS - 0.1
    assert not pool.take()
    assert pool.patience() == pytest.approx(0.1)
    now[0] = grammar_pool.COMPILE_SECONDS
    given_up = pool.take()
    assert [each.request for each in given_up] == bombs
    assert all("within 5 seconds" in (each.error or "") for each in given_up)
    (late,) = collected(pool, 1)
    assert (late.request.id, late.error) == ("late", "late is wrong")
    pool.start(request("next", "panics"))
    assert "a panic" in (collected(pool, 1)[0].error or "")
    endless.set()
    assert until(lambda: len(calls) >= grammar_pool.THREADS + 2)
    assert not pool.take(), "nobody waits for what comes too late"
    assert len(pool) == 0


def test_who_is_held_up_is_not_late() -> None:
    """A compilation is judged by the processor time of its own thread."""
    mine = grammar_pool.thread_seconds()
    clocks: Queue[Callable[[], float]] = Queue()
    done = threading.Event()

    def waits() -> None:
        clocks.put(grammar_pool.thread_seconds())
        done.wait()

    threading.Thread(target=waits, daemon=True).start()
    its = clocks.get()
    before, began = its(), mine()
    while mine() < began + 0.05:
        """Works, while the other waits."""
    assert its() - before < 0.05
    done.set()


def test_a_grammar_is_compiled_once_and_copies_are_their_own() -> None:
    vocabulary = GrammarCompiler(tokenizer, 320)
    regex = LLMatcher.grammar_from_regex("(ab|ac)d")
    first, second = vocabulary.constraint(regex), vocabulary.constraint(regex)
    a, b, c = (tokenizer().encode(letter, add_special_tokens=False)[0] for letter in "abc")
    first.take(a)
    first.take(b)
    second.take_all([a, c])
    assert (first.error, second.error) == (None, None)
    first.take(c)
    assert "satisfy the grammar" in (first.error or "")
    assert second.error is None
    assert vocabulary.constraint(regex, [a]).error is None


def test_where_the_library_is_missing_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(GrammarError, match="llguidance is not installed"):
        GrammarCompiler(tokenizer, 320).constraint("start: /a/")
