"""`corepipe ls`; what it shows of a running server is in tests/test_server.py."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from corepipe.cli.output.placement import print_placement, span
from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import INSTANCES
from corepipe.neuron.compile.compiler import compile_for_timing
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.timing.description import describe
from tests.servers import run


def test_the_table_is_labelled_as_emulated() -> None:
    shown = run("ls", "--instance", "inf2.24xlarge")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "inf2.24xlarge (emulated)" in shown.stdout
    rows = [line for line in shown.stdout.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert len(rows) == 6


def test_the_json_is_labelled_as_emulated() -> None:
    devices = json.loads(run("ls", "--instance", "trn1.2xlarge", "--json").stdout)
    assert [device["emulated"] for device in devices] == [True]
    assert devices[0]["neuroncore_ids"] == [0, 1]


def test_every_instance_is_suggested_for_an_unknown_one() -> None:
    refused = run("ls", "--instance", "nothing")
    (line,) = refused.stderr.splitlines()
    assert refused.returncode == 2
    assert all(instance.name in line for instance in INSTANCES)


@pytest.mark.parametrize(("numbers", "shown"), [([0, 1, 2], "0-2"), ([3, 3], "3"), ([], "-")])
def test_a_span(numbers: list[int], shown: str) -> None:
    assert span(numbers) == shown


PLACEMENT = {
    **dict.fromkeys(("model", "format", "format_on_device", "instance", "runtime_profile", "reason"), ""),
    **dict.fromkeys(("pipeline", "tensor", "data"), 1),
    "timing_model": None,
    "time_scale": 1.0,
    "host_limits": [],
    "cores": [],
}


def printed(placement: dict[str, object]) -> str:
    shown = io.StringIO()
    print_placement(Console(file=shown, width=80, soft_wrap=True), PLACEMENT | placement)
    return shown.getvalue()


def test_cores_that_hold_the_same_share_a_row() -> None:
    graph = architecture("llama-3.1-70b").graph(FORMATS["bf16"])
    shown = printed({"cores": describe(compile_for_timing(graph, Placement(2, 16)))})
    rows = [line.split() for line in shown.splitlines()[-2:]]
    assert [row[:3] for row in rows] == [["0-15", "0", "0-15"], ["16-31", "1", "0-15"]]


def test_an_interval_that_decides_nothing_is_called_unknown() -> None:
    near = {"time_factor_low": 0.8, "time_factor_high": 1.3, "steps_away": 1.0}
    far = {"time_factor_low": 0.004, "time_factor_high": 238.4, "steps_away": 4.25}
    shown = printed({"intervals": {"decode": near, "first token": far}})
    assert (
        "decode 0.80 to 1.30, first token not known (no similar step or model was measured; distance 4.2)"
        in shown
    )
