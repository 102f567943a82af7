"""`corepipe ls`; what it shows of a running server is in tests/test_server.py."""

from __future__ import annotations

import json

import pytest

from corepipe.cli.ls import layer_range
from corepipe.neuron.catalog import INSTANCES
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


@pytest.mark.parametrize(("layers", "shown"), [([0, 1, 2], "0-2"), ([], "-")])
def test_layers_of_a_core(layers: list[int], shown: str) -> None:
    assert layer_range(layers) == shown
