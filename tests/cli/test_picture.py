"""The picture that `corepipe top` shows, at several sizes."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from corepipe.cli.run.picture import BAR, Picture, _bar, _duration, _level
from corepipe.cli.run.reading import MetricsDelta, MetricsSample, ServedDeployment
from tests.cli.test_reading import PLACEMENT

LABELS = [{"engine": str(replica), "core": str(core)} for replica in range(16) for core in range(2)]


def reading(at, busy, replicas, tokens=1000.0, dollars=21.5, valid=1.0, hosts=()):
    labels = [have for have in LABELS if int(have["engine"]) < replicas]
    return MetricsSample(
        at,
        {
            "corepipe_device_seconds_total": [({"engine": str(replica)}, at) for replica in range(replicas)],
            "corepipe_core_busy_seconds_total": [(have, busy * at) for have in labels],
            "corepipe_device_dollars_per_hour": [({}, dollars)],
            "corepipe_device_times_valid": [({}, valid)],
            "corepipe_fleet_host_serving": [
                ({"host": f"{node}.1", "node": node}, serves) for node, serves in dict(hosts).items()
            ],
            "corepipe_time_scale_needed": [({}, 3.4)],
            "vllm:generation_tokens_total": [({}, tokens * at)],
            "corepipe_kv_blocks": [({}, 100)],
            "corepipe_kv_blocks_held": [({}, 25)],
        },
    )


def shown(
    replicas=1,
    height=None,
    width=80,
    problem="",
    between=True,
    tokens=1000.0,
    dollars=21.5,
    valid=1.0,
    hosts=(),
    **placement,
):
    deployment = ServedDeployment({**PLACEMENT, "instance": "trn1.32xlarge", **placement})
    before = reading(1.0, 0.5, replicas, tokens, dollars)
    after = reading(3.0, 0.5, replicas, tokens, dollars, valid, hosts)
    told = MetricsDelta(before, after, deployment) if between else None
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(
        Picture("http://here", deployment, told, height, problem)
    )
    return out.getvalue().splitlines()


def test_cores_are_a_line_each_where_there_is_room():
    lines = shown(replicas=2, height=24)
    assert [line.split()[0] for line in lines if "█████····· " in line] == ["0", "1", "2", "3"]
    assert "28 of 32 cores are not used by this deployment" in lines
    assert any("$21.500 an hour" in line and "$5.97 a million" in line for line in lines)
    assert any("25% in use" in line for line in lines)


def test_a_fleet_has_an_instance_on_each_machine():
    lines = shown(replicas=2, hosts={"a": 1.0, "b": 0.0}, instance="inf2.xlarge")
    assert any("1 of 2 machines serve; b not" in line for line in lines)
    assert any("$43.000 an hour" in line for line in lines)
    assert not any("are not used" in line for line in lines), "four cores of two instances of two"
    assert not any("machines serve" in line for line in shown())


@pytest.mark.parametrize("height", [20, 24, 47])
def test_a_picture_is_no_higher_than_the_terminal(height):
    lines = shown(replicas=16, height=height, width=200)
    assert len(lines) <= height
    assert len(re.findall(r"device +\d+ [·▁▂▃▄▅▆▇█]", "\n".join(lines))) == (16 if height < 47 else 0)


@pytest.mark.parametrize("width", [40, 80])
def test_nothing_is_wider_than_the_terminal(width):
    lines = shown(replicas=2, width=width)
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines if "running" in line or " of 2 vCPUs" in line] == ["requests"]


def test_what_is_missing_is_said():
    assert "waiting for the second measurement ..." in shown(between=False)
    assert "no answer: gone" in shown(problem="gone")
    assert any("tokens are tiny's" in line for line in shown(timing_model="llama-3.1-70b", width=200))
    assert any(
        "the device's, times 2; 0 of 0 steps late" in line for line in shown(clock="device", time_scale=2)
    )
    late = shown(clock="device", time_scale=2, valid=0.0)
    assert any("0 of 0 steps late: not valid; --time-scale 3.4 would do" in line for line in late)


@pytest.mark.parametrize(
    ("share", "bar", "level"),
    [
        (0, "·" * BAR, "·"),
        (0.5, "█████·····", "▄"),
        (0.0125, "▏·········", "·"),
        (1, "█" * BAR, "█"),
        (2, "█" * BAR, "█"),
    ],
)
def test_bars(share, bar, level):
    assert (_bar(share), _level(share)) == (bar, level)


def test_durations():
    assert (_duration(5), _duration(3725), _duration(360_000)) == ("0:00:05", "1:02:05", "100:00:00")
