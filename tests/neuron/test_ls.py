"""neuron-ls's output, character by character where its guide shows it."""

from __future__ import annotations

import json

import pytest

from corepipe.neuron.chips.catalog import INSTANCES, instance
from corepipe.neuron.timing import ls


def test_table_of_trn2():
    lines = ls.table(instance("trn2.48xlarge")).splitlines()
    assert lines[:3] == [
        "instance-type: trn2.48xlarge (emulated)",
        "instance-id: emulated",
        "logical-neuroncore-config: 2",
    ]
    assert lines[4].startswith("| NEURON | NEURON |  NEURON  | NEURON |   CONNECTED   |")
    assert lines[5].startswith("| DEVICE | CORES  | CORE IDS | MEMORY |    DEVICES    |")
    assert lines[7].startswith("| 0      | 4      | 0-3      | 96 GB  | 12, 3, 4, 1   |")


def test_inf2_has_no_logical_cores_to_configure():
    lines = ls.table(instance("inf2.48xlarge")).splitlines()
    assert lines[2].startswith("+--")
    assert any(line.startswith("| 0      | 2      | 0-1      | 32 GB  | 11, 1") for line in lines)


@pytest.mark.parametrize("machine", INSTANCES, ids=lambda i: i.name)
def test_every_line_is_as_wide_and_every_core_is_shown_once(machine):
    lines = [line for line in ls.table(machine).splitlines() if line[0] in "|+"]
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 3 + 2 + machine.chips
    devices = json.loads(ls.as_json(machine))
    assert [core for d in devices for core in d["neuroncore_ids"]] == list(range(machine.cores))
    assert all(d["emulated"] for d in devices)


def test_json_of_trn2():
    device = json.loads(ls.as_json(instance("trn2.48xlarge")))[0]
    assert device["connected_to"] == [12, 3, 4, 1]
    assert device["memory_size"] == 103079215104
    assert (device["nc_count"], device["logical_neuroncore_config"]) == (4, 2)
