"""The constants of the cost model that no document gives: five for each generation of NeuronCores.

They are fitted to published measurements by benchmarks/fit_cost_model.py, which writes `constants.json` with
their provenance.  All other numbers of the model are in the catalogue, with their sources.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from math import inf, isfinite
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("constants.json")

START_SECONDS = 1.3e-6
"""Time of a transfer's semaphore before anything can start: nki/deep-dives/nki-dma-bandwidth-guide.rst."""

HOST_LINK_BYTES_PER_SECOND = 3.4e9
"""Speed of results from device to host: derived from about-neuron/benchmarks/inf2/latency_data_encoder.csv
(16 times 128 MB of XLM-R's logits take 626 ms, of which the cores compute for some 20)."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Speeds that one generation of cores sustains, relative to its data sheet.

    memory_efficiency: share of a core's part of the memory bandwidth that large transfers reach.
    descriptor_bytes: bytes that could have moved in the time that each piece of a gather costs, so that
    pieces of n bytes move at n / (n + descriptor_bytes) of that speed (keys and values, embedding rows).
    engine_efficiency: share of the instruction cost model's speed that TensorE, VectorE and ScalarE reach.
    collective_seconds: time of one exchange in a group, whatever its payload; an all-reduce is two exchanges.
    collective_bytes_per_second: speed at which a rank passes on data in an exchange, where its links are no
    slower.
    core_bytes_per_second: the most that one core reads from a memory bank that it shares.
    """

    memory_efficiency: float
    descriptor_bytes: float
    engine_efficiency: float
    collective_seconds: float
    collective_bytes_per_second: float
    start_seconds: float = START_SECONDS
    core_bytes_per_second: float = inf


COMMON = ("memory_efficiency", "engine_efficiency", "collective_seconds", "collective_bytes_per_second")
GATHERS, SHARED_BANK = "descriptor_bytes", "core_bytes_per_second"
"""The fifth constant: for cores with a bank of their own, and for cores that share one (v1)."""

ASSUMED_DESCRIPTOR_BYTES = 220.0
"""For cores that share a bank, the constant of NeuronCore-v2: no measurement of a model that gathers was
published for them."""


def fitted(constants: Constants) -> tuple[str, ...]:
    """Returns the names of the five constants that a fit may change; the others are documented, or
    assumed."""
    return (*COMMON, SHARED_BANK if isfinite(constants.core_bytes_per_second) else GATHERS)


IDEAL = Constants(1.0, 0.0, 1.0, 0.0, inf, 0.0)
"""The data sheet: with these the model is a plain roofline (Williams et al. 2009)."""


FEW_ROWS = ("v3",)
"""Generations with few measurements: a fit draws their constants to those of the previous one."""

STAND_INS = {"v4": "v3"}
"""Generations without published measurements, and the generation whose constants they use."""


@cache
def shipped() -> Mapping[str, Constants]:
    """Returns the constants of each generation of cores, by `Core.version`."""
    fitted_ones = {
        version: parse(values)
        for version, values in json.loads(FILE.read_text()).items()
        if version != "provenance"
    }
    return fitted_ones | {version: fitted_ones[other] for version, other in STAND_INS.items()}


def provenance() -> dict[str, Any]:
    """Returns when, from which rows and how well the shipped constants were fitted."""
    found: dict[str, Any] = json.loads(FILE.read_text())["provenance"]
    return found


def folds() -> dict[str, dict[str, Constants]]:
    """Returns the constants that were fitted without one family of models, by generation, by that family."""
    return {
        name: {version: parse(values) for version, values in fold.items()}
        for name, fold in provenance()["folds"].items()
    }


def parse(values: Mapping[str, object]) -> Constants:
    """Reads constants from JSON.  Raises ValueError for unknown names or impossible values."""
    if set(values) not in ({*COMMON, GATHERS}, {*COMMON, SHARED_BANK}):
        needed = f"{', '.join(COMMON)} and either {GATHERS} or {SHARED_BANK}"
        raise ValueError(f"needs {needed}, not {', '.join(map(str, values))}")
    numbers = {GATHERS: ASSUMED_DESCRIPTOR_BYTES}
    for name, value in values.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not (isfinite(value) and value >= 0)
        ):
            raise ValueError(f"{name} must be a number that is not negative, not {value!r:.40}")
        numbers[name] = float(value)
    if any(value == 0 for name, value in numbers.items() if "efficiency" in name or "per_second" in name):
        raise ValueError("efficiencies and speeds must be positive")
    return Constants(**numbers)


def as_json(constants: Constants) -> dict[str, float]:
    """Returns the fitted constants, as `parse` reads them."""
    values: dict[str, float] = asdict(constants)
    return {name: values[name] for name in fitted(constants)}
