"""Grammars checked in processes of their own: malicious ones, ends of processes, and remembered verdicts."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from corepipe.structured import grammar_checker
from corepipe.structured.constraints import MAX_BYTES, Constraint, StructuredOutputsParams, constraint_of
from corepipe.structured.grammar_checker import GrammarChecker, GrammarVerdict
from corepipe.structured.spelling import Spelling

JSON = Constraint("json_object", '{"type":"object"}', "response_format")


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows more time on the clock: a second of processor time may take long."""
    monkeypatch.setattr(grammar_checker, "WAIT_SECONDS", 1e3)
    monkeypatch.setattr(grammar_checker, "ANSWER_SECONDS", 1e3)


@pytest.fixture
def checker() -> Iterator[GrammarChecker]:
    made = GrammarChecker(cpu_seconds=0.2)
    yield made
    made.close()


def asked(**params: Any) -> Constraint:
    return constraint_of(StructuredOutputsParams(**params))


def sandboxes() -> list[psutil.Process]:
    """Returns the sandbox processes of this process, the oldest first."""
    found = [one for one in psutil.Process().children() if _is_sandbox(one)]
    return sorted(found, key=psutil.Process.create_time)


def _is_sandbox(process: psutil.Process) -> bool:
    try:
        return grammar_checker.MODULE in process.cmdline()
    except psutil.NoSuchProcess:  # the process has ended since it was listed
        return False


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth):
        schema = {"anyOf": [schema]}
    return schema


def chain(length: int) -> dict[str, Any]:
    links = {str(at): {"$ref": f"#/$defs/{at + 1}"} for at in range(length)}
    return {"$ref": "#/$defs/0", "$defs": {**links, str(length): {"type": "null"}}}


def doubled(levels: int) -> dict[str, Any]:
    """Makes nested schemas, each of which holds the next one twice."""
    twice = {str(at): {"allOf": [{"$ref": f"#/$defs/{at + 1}"}] * 2} for at in range(levels)}
    return {"$ref": "#/$defs/0", "$defs": {**twice, str(levels): {"type": "object", "properties": {"a": {}}}}}


BOMBS: dict[str, dict[str, Any]] = {
    "a regular expression of powers": {"regex": "a{1000}{1000}{1000}"},
    "more powers": {"regex": "((a{1,100}){1,100}){1,100}b"},
    "alternatives of alternatives": {"regex": "(((a|aa){50}|(b|bb){50}){50}c){50}"},
    "brackets": {"regex": "(" * 50_000 + "a" + ")" * 50_000},
    "a repeated class": {"regex": r"[\p{L}\p{N}]{1,5000}\p{L}{5000}"},
    "all of everything twice": {"json": doubled(40)},
    "a long chain": {"json": chain(4_000)},
    "deep": {"json": nested(60)},
    "a large enumeration": {"json": {"enum": [f"value number {at}" for at in range(9_000)]}},
    "many choices": {"choice": [f"{at:x}" * 3 for at in range(15_000)]},
    "many properties": {"json": {"type": "object", "properties": {f"p{at}": {} for at in range(9_000)}}},
    "a large count": {"json": {"type": "array", "items": {"type": "null"}, "minItems": 10**9}},
    "a long text": {"json": {"type": "string", "minLength": 10**9, "maxLength": 2 * 10**9}},
    "patterns that must hold at once": {
        "json": {"allOf": [{"type": "string", "pattern": f"a.{{{at}}}b"} for at in range(50, 90)]}
    },
    "an ambiguous grammar": {"grammar": 'start: a\na: a a | "x" | ""'},
    "a deep grammar": {"grammar": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "deep GBNF": {"grammar": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "many rules": {
        "grammar": "start: r0\n" + "\n".join(f'r{at}: r{at + 1} "a"' for at in range(9_000)) + '\nr9000: "b"'
    },
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_bounded_time_and_memory(checker: GrammarChecker, name: str) -> None:
    """Harmless ones may be accepted: the kernel sets the limits, and the next question is answered."""
    constraint = asked(**BOMBS[name])
    verdict = asyncio.run(checker.check(constraint))
    assert bool(verdict.grammar) != bool(verdict.error)
    assert len(verdict.error) < 1200
    assert asyncio.run(checker.check(JSON)).grammar


@pytest.mark.parametrize("pattern", ["a{1000}{1000}{1000}", "((a{1,100}){1,100}){1,100}b", "a{1000}{100}"])
def test_what_would_fail_at_its_first_tokens_is_refused(checker: GrammarChecker, pattern: str) -> None:
    """The library accepts them, and reaches its limits when an answer has begun."""
    verdict = asyncio.run(checker.check(asked(regex=pattern)))
    assert (verdict.grammar, verdict.code) == ("", "request_too_complex")
    assert verdict.error == "Invalid structured_outputs.regex: it is too complex."


def test_what_a_model_cannot_write_is_named_though_it_cannot_be_printed() -> None:
    """The process that reports it can open no files any more, not even modules."""
    schema = {"type": "object", "properties": {"\U0008c4b7\n\u00a0": {"type": "null"}}}
    checker = GrammarChecker(spelling=lambda: Spelling(missing=b"\xf2", absent=b"\xf2"))
    try:
        verdict = asyncio.run(checker.check(asked(json=schema)))
    finally:
        checker.close()
    assert verdict.error.endswith("the model has no tokens for U+8C4B7.")
    assert verdict.error.isprintable()


def test_what_takes_too_long_ends_its_process_and_is_remembered() -> None:
    checker = GrammarChecker(cpu_seconds=0.05)
    bomb = asked(**BOMBS["many properties"])
    first = asyncio.run(checker.check(bomb))
    assert first.code == "request_too_complex"
    assert "takes more than 0.05 s of processor time" in first.error
    assert first.seconds > 0
    again = asyncio.run(checker.check(bomb))
    assert (again.error, again.seconds) == (first.error, 0.0)


def test_a_verdict_is_made_once_for_all_who_ask_at_once(checker: GrammarChecker) -> None:
    async def many() -> list[GrammarVerdict]:
        return await asyncio.gather(*(checker.check(asked(regex="a{1,5}")) for _ in range(50)))

    before = len(sandboxes())
    found = asyncio.run(many())
    assert len({one.grammar for one in found}) == 1
    assert len(sandboxes()) - before == 1
    assert asyncio.run(checker.check(asked(regex="a{1,5}"))).seconds == 0


def test_who_goes_away_takes_nothing_from_those_who_wait(checker: GrammarChecker) -> None:
    async def both() -> GrammarVerdict:
        first = asyncio.ensure_future(checker.check(JSON))
        second = asyncio.ensure_future(checker.check(JSON))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(both()).grammar


def test_what_nobody_waits_for_any_more_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never begun; if it is asked for again, it is checked."""
    checked: list[Constraint] = []

    class Checker(GrammarChecker):
        def _ask(self, constraint: Constraint) -> tuple[GrammarVerdict, bool]:
            checked.append(constraint)
            return super()._ask(constraint)

    checker, gate = Checker(), threading.Event()
    for _ in range(grammar_checker.PROCESSES):
        checker._threads.submit(gate.wait)
    left, kept = [asked(regex=f"a{at}") for at in range(5)], asked(regex="b")

    async def late() -> GrammarVerdict:
        waits = asyncio.ensure_future(checker.check(kept))
        await asyncio.sleep(0)
        monkeypatch.setattr(grammar_checker, "WAIT_SECONDS", 0.0)
        for constraint in [*left, kept]:
            with pytest.raises(TimeoutError):
                await checker.check(constraint)
        gate.set()
        return await waits

    assert asyncio.run(late()).grammar
    assert checked == [kept]
    monkeypatch.setattr(grammar_checker, "WAIT_SECONDS", 1e3)
    assert asyncio.run(checker.check(left[0])).grammar
    checker.close()


def test_who_asks_a_process_that_stands_still_holds_up_nobody_else(checker: GrammarChecker) -> None:
    numbers = itertools.count()
    earlier = {one.pid for one in sandboxes()}  # processes of other tests may be about to end

    def ours() -> list[psutil.Process]:
        return [one for one in sandboxes() if one.pid not in earlier]

    def ask() -> asyncio.Task[GrammarVerdict]:
        return asyncio.ensure_future(checker.check(asked(regex=f"a{next(numbers)}")))

    async def held_up() -> tuple[GrammarVerdict, GrammarVerdict]:
        while len(ours()) < grammar_checker.PROCESSES:
            await asyncio.gather(ask(), ask())
        stopped = ours()[0]
        stopped.suspend()
        held, later = ask(), ask()
        while held.done() or not later.done():
            if held.done():
                held, later = later, ask()
            await asyncio.wait({held, later}, return_when=asyncio.FIRST_COMPLETED)
        stopped.resume()
        return await later, await held

    assert all(one.grammar for one in asyncio.run(held_up()))


def test_a_process_that_was_killed_is_replaced_and_its_question_not_remembered(
    checker: GrammarChecker,
) -> None:
    asyncio.run(checker.check(JSON))
    killed = sandboxes()[-1]
    killed.suspend()

    async def ask() -> GrammarVerdict:
        task = asyncio.ensure_future(checker.check(asked(regex="a")))
        await asyncio.sleep(0)
        killed.kill()
        return await task

    verdicts = [asyncio.run(ask()), asyncio.run(checker.check(asked(regex="a")))]
    assert verdicts[-1].grammar


def test_a_process_has_limits_and_no_secrets(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COREPIPE_API_KEY", "canary")
    asyncio.run(checker.check(JSON))
    home = Path(f"/proc/{sandboxes()[-1].pid}")
    if not home.is_dir():
        pytest.skip("reads /proc")
    assert b"canary" not in (home / "environ").read_bytes()
    limits = (home / "limits").read_text()
    assert "Max open files            0 " in limits
    assert f"Max address space         {1 << 30} " in limits


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_checker, "MOST_KNOWN", 2)
    checker = GrammarChecker()
    for pattern in ("a", "b", "c"):
        assert asyncio.run(checker.check(asked(regex=pattern))).seconds > 0
    assert asyncio.run(checker.check(asked(regex="c"))).seconds == 0
    assert asyncio.run(checker.check(asked(regex="a"))).seconds > 0


def test_the_memory_of_verdicts_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_checker, "MOST_BYTES", 4 * MAX_BYTES)
    checker = GrammarChecker()
    large = [asked(choice=[f"{at}{'x' * 60_000}"]) for at in range(3)]
    for constraint in large:
        asyncio.run(checker.check(constraint))
    assert asyncio.run(checker.check(large[-1])).seconds == 0
    assert json.loads(large[0].text)


def test_the_processes_end_with_the_checker() -> None:
    checker = GrammarChecker()
    asyncio.run(checker.check(JSON))
    mine = sandboxes()[-1]
    checker.close()
    assert not mine.is_running()
