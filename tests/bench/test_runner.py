from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from corepipe.bench.files import COLUMNS, rows
from corepipe.bench.page import run_page
from corepipe.workload.arrivals import Arrivals
from corepipe.workload.workload import PrefixTree
from tests.bench.harness import play, stopped_after, synthetic
from tests.bench.stub import Behaviour, sends

QUICK = Behaviour(first=0.01, gap=0.001, pad=2)


def test_prompts_have_the_length_that_was_asked_for() -> None:
    """Prompts have it also with the tokens that the server adds before each, and with a system message."""
    for api in ("completions", "chat"):
        for prefixes in (PrefixTree(), PrefixTree(((1, 8), (3, 4)))):
            workload = synthetic(prompt=20, requests=6, prefixes=prefixes)
            report = play(QUICK, workload, api=api)
            shared = sum(tokens for _, tokens in prefixes.levels)
            assert {o.input_tokens for o in report.recorder.outcomes} == {20 + shared}


def test_conversations_hold_what_was_answered() -> None:
    report = play(QUICK, synthetic(prompt=5, output=3, turns=3, users=2, requests=6), api="chat")
    by_session: dict[int, list[int]] = {}
    for outcome in report.recorder.outcomes:
        by_session.setdefault(outcome.session, []).append(outcome.input_tokens)
    # The roles of two more messages are two more tokens: what the stub counts.
    assert list(by_session.values()) == [[5, 5 + 3 + 5 + 2, 5 + 2 * (3 + 5 + 2)]] * 2


def test_a_closed_loop_keeps_its_users_busy() -> None:
    report = play(QUICK, synthetic(users=3, requests=30))
    assert len(report.recorder.outcomes) == 30
    assert report.document()["max_concurrent_requests"] == 3
    assert report.document()["mean_concurrent_requests"] > 2.98


def test_an_open_loop_sends_when_due() -> None:
    workload = synthetic(rate=50.0, duration=0.6, seed=3)
    report = play(QUICK, workload)
    due = [session.start for session in workload.workload().sessions()]
    sent = sorted(o.intended - report.span.start for o in report.recorder.outcomes)
    assert sent == pytest.approx(due)
    assert all(o.sent >= o.intended for o in report.recorder.outcomes)


def test_a_ramp_sends_more_and_more() -> None:
    rising = Arrivals.parse("1..99", "constant", seconds=1.0)
    report = play(QUICK, replace(synthetic(output=1, duration=1.0), arrivals=rising, users=None))
    halves = Counter(o.intended - report.span.start > 0.5 for o in report.recorder.outcomes)
    assert halves[True] / halves[False] == pytest.approx(2.92, rel=0.1)  # 37.25 to 12.75 expected


def test_the_client_hangs_up_on_a_share() -> None:
    report = play(QUICK, synthetic(requests=60, output=20), cancel=0.5)
    ends = report.recorder.ends
    assert ends["completed"] + ends["cancelled"] == 60
    assert 15 < ends["cancelled"] < 45
    assert report.recorder.latencies["ttft"].count == ends["completed"]
    cancelled = [o for o in report.recorder.outcomes if o.end == "cancelled"]
    assert all(1 <= len(o.stamps) < 20 for o in cancelled)


def test_the_server_learns_that_the_client_hung_up(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    play(Behaviour(first=0.01, gap=0.01, log=str(log)), synthetic(requests=4, output=50), cancel=1.0)
    assert sum(not line["whole"] for line in sends(log).values()) == 4


def test_failures_are_counted_by_kind() -> None:
    failing = Behaviour(first=0.01, gap=0.001, refuse=3, cut=4)
    report = play(failing, synthetic(rate=100.0, duration=0.3, seed=1))
    errors = report.recorder.errors
    assert set(errors) == {"429", "cut"}
    assert report.recorder.details["429"] == "the queue is full"
    assert errors.total() == report.recorder.ends["failed"]
    assert any("429: the queue is full" in note for note in report.notes())


@pytest.mark.parametrize(
    ("behaviour", "kind", "words"),
    [
        (Behaviour(cut=4), "cut", "the server closed the connection"),
        (Behaviour(cut=4, error="engine died"), "error in stream", "engine died"),
        (Behaviour(reason="abort"), "finish_reason abort", "the server ended the answer"),
    ],
)
def test_an_answer_that_did_not_end_well_is_a_failure(behaviour: Behaviour, kind: str, words: str) -> None:
    """The first report of the failure counts; and the answer is in no latency."""
    report = play(behaviour, synthetic(rate=100.0, duration=0.3, seed=1))
    assert set(report.recorder.errors) == {kind}
    assert report.recorder.details[kind] == words
    assert report.recorder.latencies["ttft"].count == report.recorder.ends["completed"]
    assert any(f"{kind}: {words}" in note for note in report.notes())


def test_an_answer_that_takes_too_long() -> None:
    slow = Behaviour(first=0.05, gap=0.001)
    report = play(slow, synthetic(rate=50.0, duration=0.1, output=300), seconds=0.2)
    assert set(report.recorder.errors) == {"timeout"}


def test_a_run_that_is_ended_tells_what_it_has() -> None:
    report = stopped_after(Behaviour(first=0.05, gap=0.01), synthetic(users=4, duration=60.0), 0.4)
    assert report.interrupted
    assert report.recorder.ends["completed"] >= 4
    assert report.recorder.ends["unfinished"] == 4
    assert report.span.seconds < 5


def test_a_run_that_was_ended_before_it_began_sends_nothing() -> None:
    report = stopped_after(Behaviour(), synthetic(rate=50.0, duration=60.0), 0.0)
    assert len(report.recorder.outcomes) <= 1
    assert run_page(report).startswith("<!doctype html>")


def test_files() -> None:
    report = play(QUICK, synthetic(requests=5))
    head, *lines = rows([report]).splitlines()
    assert head.split(",") == list(COLUMNS)
    assert len(lines) == 5
    first = dict(zip(COLUMNS, lines[0].split(","), strict=True))
    assert first["end"] == "completed"
    assert (first["input_tokens"], first["output_tokens"], first["chunks"]) == ("20", "10", "10")
    assert float(first["ttft_ms"]) > 10
    json.dumps(report.document())
