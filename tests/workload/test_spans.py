"""Tests of sessions of agents from spans, and that a load test and a simulation play them alike."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.simulation.simulate import SimulationConfig, simulate
from corepipe.workload.traces import trace_format, trace_workload, write_trace
from corepipe.workload.workload import Session
from tests.bench import harness
from tests.bench.stub import Behaviour
from tests.servers import TINY, run, served
from tests.simulation import simulations

START = 1_790_000_000_000_000_000


def attribute(key: str, value: int | str) -> dict[str, Any]:
    return {
        "key": key,
        "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
    }


def span(own: str, start: float, end: float, **more: Any) -> dict[str, Any]:
    """Returns a span of an agent or a tool; with `prompt` and `answer`, of a model."""
    attributes = []
    if "prompt" in more:
        named = {
            "operation.name": "chat",
            "usage.input_tokens": more["prompt"],
            "usage.output_tokens": more["answer"],
            "usage.cache_read.input_tokens": more.get("cached", 0),
            "agent.name": more.get("agent", "a"),
        }
        attributes = [attribute(f"gen_ai.{key}", value) for key, value in named.items()]
    times = {"startTimeUnixNano": start, "endTimeUnixNano": end}
    return {
        "traceId": more.get("trace", "t"),
        "spanId": own,
        "parentSpanId": more.get("parent", ""),
        **{name: str(START + round(second * 1e9)) for name, second in times.items()},
        "attributes": attributes,
    }


def exports(*lines: Sequence[dict[str, Any]]) -> str:
    """Returns a line for each list of spans."""
    wrapped = ({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]} for spans in lines)
    return "".join(f"{json.dumps(line)}\n" for line in wrapped)


def agent(trace: str, at: float, size: int = 100, second: float = 1.0) -> list[dict[str, Any]]:
    """Returns a plan of `size` tokens, two searches side by side, a summary; tools work 0.3 and 0.5 of a
    `second`."""
    calls = [
        ("1", 0.0, 1.0, {"prompt": size, "answer": 8, "cached": size * 16 // 25}),
        ("t", 1.0, 1.3, {}),
        ("2", 1.3, 2.0, {"prompt": size * 3 // 2, "answer": 6}),
        ("3", 1.5, 2.5, {"prompt": size * 9 // 5, "answer": 8}),
        ("4", 3.0, 4.0, {"prompt": size * 23 // 10, "answer": 5}),
    ]
    return [
        span(f"{trace}0", at, at + 4.0 * second, trace=trace),
        *(
            span(trace + own, at + start * second, at + end * second, trace=trace, parent=f"{trace}0", **more)
            for own, start, end, more in calls
        ),
    ]


def read(path: Path, text: str) -> list[Session]:
    path.write_text(text)
    assert trace_format(path) == "otel"
    return list(trace_workload(path).sessions())


def test_turns_follow_what_ended_before_them(tmp_path: Path) -> None:
    first, second = read(tmp_path / "x", exports(agent("p", 5.0), agent("q", 7.25)))
    assert (first.start, second.start) == (0.0, 2.25)
    assert [(turn.prompt_tokens, turn.output_tokens, turn.after) for turn in first.turns] == [
        (100, 8, None),
        (150, 6, 0),
        (180, 8, 0),
        (230, 5, 2),
    ]
    assert [turn.think_seconds for turn in first.turns] == pytest.approx([0.0, 0.3, 0.5, 0.5])
    assert [first.following(turn) for turn in range(4)] == [[1, 2], [], [3], []]
    plan, search, other, summary = (turn.prompt for turn in first.turns)
    assert plan[0] == second.turns[0].prompt[0]  # the system prompt
    assert plan[0].tokens == 64
    assert search[:2] == other[:2] == plan
    assert search[2].id == first.turns[0].answer
    assert summary[: len(other)] == other
    assert summary[len(other)].id == first.turns[2].answer


def test_a_prompt_without_room_for_the_conversation_is_a_new_one(tmp_path: Path) -> None:
    calls = [span("1", 0, 1, prompt=300, answer=50, cached=64), span("2", 2, 3, prompt=200, answer=5)]
    (session,) = read(tmp_path / "x", exports(calls))
    first, second = (turn.prompt for turn in session.turns)
    assert second[0] == first[0]
    assert [segment.tokens for segment in second] == [64, 136]
    assert second[1].id != first[1].id


def test_conversations_may_have_several_traces(tmp_path: Path) -> None:
    calls = [span(n, at, at + 1.0, trace=n, prompt=9 + 20 * at, answer=4) for n, at in (("1", 0), ("2", 5))]
    for call in calls:
        call["attributes"].append(attribute("gen_ai.conversation.id", "c"))
    (session,) = read(tmp_path / "x", exports(calls[:1], calls[1:]))
    assert [turn.think_seconds for turn in session.turns] == [0.0, 4.0]


GOOD = span("1", 1, 2, prompt=10, answer=5)


@pytest.mark.parametrize(
    ("spans", "says"),
    [
        ([span("2", 0.5, 3, parent="1")], "line 2, startTimeUnixNano: span 2 starts before its parent"),
        ([span("2", 2, 3, parent="7")], "line 2, parentSpanId: span 2: 7 is not in the file"),
        (
            [span("2", 2, 3, parent="3"), span("3", 2, 3, parent="2")],
            "line 2, parentSpanId: span 2 is its own",
        ),
        ([span("2", 2, 3, parent="2")], "line 2, parentSpanId: span 2 is its own ancestor"),
        ([span("2", 3, 2)], "line 2, endTimeUnixNano: span 2 ends before it starts"),
        ([span("1", 2, 3)], "line 2, spanId: span 1 is there twice"),
        ([{**GOOD, "spanId": ""}], "line 2, spanId: a span without its ids"),
        ([{**GOOD, "spanId": "2", "endTimeUnixNano": "soon"}], "line 2, endTimeUnixNano: soon is no time"),
        ([span("2", 2, 3, prompt=0, answer=5)], "line 2, gen_ai.usage.input_tokens: 0 tokens"),
        ([span("2", 2, 3, prompt=9, answer=-1)], "line 2, gen_ai.usage.output_tokens: -1 tokens"),
        ([{**GOOD, "spanId": "2", "attributes": 5}], "line 2, attributes: is no list of objects"),
    ],
)
def test_what_cannot_be_is_named_with_its_line(
    tmp_path: Path, spans: list[dict[str, Any]], says: str
) -> None:
    path = tmp_path / "x"
    with pytest.raises(UserError, match="line 2") as told:
        read(path, exports([GOOD], spans))
    assert f"{path}, {says}" in str(told.value)
    assert "\n" not in str(told.value)


def test_without_a_call_there_is_nothing_to_play(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no span in it is a call of a model"):
        read(tmp_path / "x", exports([span("1", 0, 1)]))


def test_spans_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="otel is read"):
        write_trace(tmp_path / "x", simulations.workload(3), "otel")


def test_requests_and_speed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(exports(agent("p", 0.0), agent("q", 8.0)))
    first, second = trace_workload(path, limit=6, speed=2.0).sessions()
    assert (len(first.turns), len(second.turns), second.start) == (4, 2, 4.0)
    assert [turn.think_seconds for turn in first.turns] == pytest.approx([0.0, 0.15, 0.25, 0.25])


def planned(starts: Sequence[float], *of_each: float) -> Iterator[list[dict[str, Any]]]:
    for number, at in enumerate(starts):
        yield agent(chr(ord("a") + number), at, *of_each)


def test_a_load_test_and_a_simulation_send_the_same_turns_in_the_same_order(tmp_path: Path) -> None:
    """Both run in virtual time: a stub that answers as soon as a device of these step times does."""
    path = tmp_path / "x"
    path.write_text(exports(*planned([0.0, 0.1, 2.0, 5.0])))
    report = harness.play(Behaviour(first=0.01, gap=0.01), trace_workload(path))
    sent = sorted(report.recorder.outcomes, key=lambda outcome: outcome.sent)
    record = simulations.play(
        trace_workload(path), cost=simulations.Cost(fixed=0.01), max_num_batched_tokens=512
    )
    order = np.argsort(record.requests["arrival"], kind="stable")
    asked = record.requests["prompt_tokens"][order].tolist()
    assert [outcome.end for outcome in sent] == ["completed"] * 16
    assert [outcome.asked_input for outcome in sent] == asked
    moments = np.array([outcome.sent - sent[0].sent for outcome in sent])
    assert moments == pytest.approx(record.requests["arrival"][order], abs=0.02)
    assert sum(replica.scheduler.prefix_hits for replica in record.replicas) > 0


def test_a_server_at_the_devices_pace_and_a_simulation(tmp_path: Path) -> None:
    """Sessions are so far apart that none overlaps another: turns in the same order, the median time of
    the device to a first token within a tenth."""
    path, scale, timed = tmp_path / "x", 4.0, "llama-3.2-1b"
    path.write_text(exports(*planned([0.0, 1.0], 50, 0.2)))
    fixed = [
        "--clock",
        "device",
        "--timing-model",
        timed,
        "--instance",
        "inf2.xlarge",
        "--max-model-len",
        512,
    ]
    with served(TINY, "--served-model-name", "m", "--time-scale", scale, "--threads", 1, *fixed) as server:
        arguments = ("--trace", path, "--trace-speed", 1 / scale, "--output", tmp_path / "found")
        assert run("bench", server.url, *arguments).returncode == 0
    with (tmp_path / "found" / "requests.csv").open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (int(row["session"]), float(row["due_s"])))
    engine = EngineConfig(model=timed, instance="inf2.xlarge", max_model_len=512)
    requests = simulate(SimulationConfig(engine), trace_workload(path)).requests
    order = np.argsort(requests["arrival"], kind="stable")
    assert [int(row["asked_input_tokens"]) for row in rows] == requests["prompt_tokens"][order].tolist()
    found = np.median([float(row["device_ttft_ms"]) for row in rows]) / 1e3
    assert found == pytest.approx(np.median(requests["first_at"] - requests["arrival"]), rel=0.1)
