"""Records of simulations as they were written before a heap of events was used: the same bytes, ever since.

`tests/data/simulation/records.json` was written by the loop that asked every replica at every event.  Costs,
limits and workloads are this directory's own: no constant of a device is in it.
"""

from __future__ import annotations

import json
import random
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.simulations import bytes_of, play, situation

FROZEN = json.loads((Path(__file__).parents[1] / "data/simulation/records.json").read_text())


def digest(of: dict[str, Any]) -> str:
    written = sha256()
    for part in bytes_of(play(**of)):
        written.update(part + b"|")
    return written.hexdigest()[:20]


@pytest.mark.parametrize("seed", FROZEN["one to three replicas"])
def test_of_one_to_three_replicas(seed: str) -> None:
    assert digest(situation(int(seed))) == FROZEN["one to three replicas"][seed]


@pytest.mark.parametrize("seed", FROZEN["many replicas"])
def test_of_many_replicas(seed: str) -> None:
    of = situation(int(seed))
    of["cost"] = of["cost"][:1] * random.Random(int(seed)).choice([5, 16, 40])
    assert digest(of) == FROZEN["many replicas"][seed]
