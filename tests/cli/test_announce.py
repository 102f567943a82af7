"""Messages of a server at its start: a summary, and all that is known with --verbose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from corepipe.cli.start.announce import MOST_LINES, Announcement
from corepipe.engine.messages import Ready
from corepipe.serving.api.http.ports import ServerPort
from tests.servers import TINY, served

CORE = {"memory_bytes": {"weights": 4_410_000_000, "kv_cache": 12_000_000, "buffers": 0}}
PLACEMENT: dict[str, Any] = {
    "model": "tiny",
    "timing_model": None,
    "format": "int8",
    "format_on_device": "native",
    "instance": "inf2.xlarge",
    "runtime_profile": "async",
    **dict.fromkeys(("pipeline", "tensor", "data"), 1),
    "host_limits": [],
    "cores": [{"memory_bytes": {"weights": 1}}, CORE],
}
TO_KNOW: dict[str, Any] = {
    "hypothetical": "nothing was measured: for many reasons",
    "timing_model": "big",
    "assumed_acceptance_rates": [0.5, 0.25],
    "host_limits": ["it keeps fewer", "it takes fewer"],
}
NOTES = ["its response_template is not used: it is wrong"]
COMMON = ["faults are injected", "recording into x"]
URLS = {ServerPort.PUBLIC: "http://h:1", ServerPort.ADMIN: "http://h:2", ServerPort.METRICS: "http://h:3"}
ONE = Announcement("a", [], URLS, COMMON)


def ready(**placement: object) -> Ready:
    return Ready(PLACEMENT | placement, 8, 32, 256, "avx512", 0.1, threads="2 threads")


def in_short(said: Announcement, notes: list[str], **placement: object) -> list[str]:
    return said.in_short(ready(**placement), notes)


def test_what_a_person_wants_to_know_comes_first() -> None:
    deployed, memory, loaded = in_short(replace(ONE, common=[], urls={ServerPort.PUBLIC: "http://h:1"}), [])
    assert deployed.startswith(
        "tiny, int8 (native on the device), on inf2.xlarge (emulated, software profile async): "
    )
    assert memory == "memory of the fullest core (emulated): 4.41 GB of weights, 12.0 MB of KV cache"
    assert "http://h:1/v1 (requests of up to 256 tokens); Ctrl-C stops it, --verbose prints more" in loaded


@pytest.mark.parametrize("common", [[], COMMON])
@pytest.mark.parametrize("notes", [[], NOTES])
@pytest.mark.parametrize("placement", [{}, TO_KNOW])
def test_lines_are_few_and_nothing_to_act_on_is_left_out(
    placement: dict[str, Any], notes: list[str], common: list[str]
) -> None:
    said = in_short(replace(ONE, common=common), notes, **placement)
    assert len(said) <= MOST_LINES
    whole = "\n".join(said)
    told = [
        "those of big; tiny computes the tokens",
        "0.5, 0.25",
        "hypothetical: nothing was measured",
        *TO_KNOW["host_limits"],
    ]
    assert [what for what in [*notes, *common, *(told if placement else [])] if what not in whole] == []
    assert "for many reasons" not in whole


def test_each_of_several_models_has_a_line_and_the_last_says_where() -> None:
    first, last = (replace(ONE, name=name, names=["a", "b"]) for name in "ab")
    (line,) = in_short(first, NOTES, **TO_KNOW)
    assert line.startswith("a: ready in ")
    assert "it takes fewer" in line
    assert in_short(last, [])[1:] == [
        *COMMON,
        "ready: http://h:1/v1 (a, b); Ctrl-C stops it, --verbose prints more",
        "metrics, placement and control: http://h:2; metrics, without a key: http://h:3",
    ]


FLAGS = ("--instance", "trn3.48xlarge", "--inject", "429:5%", "--admin-port", 0, "--metrics-port", 0)


@pytest.mark.parametrize("flags", [(), FLAGS])
def test_a_start_takes_at_most_eight_lines(flags: tuple[object, ...]) -> None:
    with served(TINY, *flags) as server:
        server.end()
        said = server.stderr
    assert len(said) <= 8
    assert all(
        word in "".join(said) for word in ("int8", "emulated", "memory of the fullest core", "--verbose")
    )
    assert "kernels not built" not in "".join(said)


def test_verbose_says_all() -> None:
    with served(TINY, "--verbose") as server:
        server.end()
        said = "".join(server.stderr)
    for word in (
        "auto: pipeline 1",
        "intervals of a measurement",
        "KV a token",
        "tool calls as hermes",
    ):
        assert word in said
    assert "--verbose" not in said
