"""The constants of kernels' times that no document gives: at most five for each generation of NeuronCores.

benchmarks/nki_calibration.py fits them to published measurements of kernels and writes `constants.json` with
their provenance.  All other numbers are in `costs`, with their sources.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("constants.json")


@dataclass(frozen=True, slots=True)
class Constants:
    """Costs of instructions besides their published cycles, in one generation of cores.

    dma_efficiency: share of the published bandwidth of a DMA engine that large packets reach.
    vector_overhead, scalar_overhead, tensor_overhead: cycles that every instruction (every pass of TensorE)
    adds to its published ones.
    frame_us: time of an execution before its first transfer and after its last, as `nki.benchmark` counts.
    """

    dma_efficiency: float
    vector_overhead: float
    scalar_overhead: float
    tensor_overhead: float
    frame_us: float


DOCUMENTED: Mapping[str, Constants] = {
    # vector 106: rope and adamw (AccelOpt's counters); tensor 83: 595 cycles of bf16, 4 x (512 + 85) of fp32;
    # scalar 200: the same counters, transfers' triggers included; the frame is v3's.
    "v2": Constants(1.0, 106.0, 200.0, 83.0, 8.0),
    # Ten instruction traces of trn2: intervals of N + 60 on VectorE and ScalarE, N + 4 on TensorE, packets of
    # 4096 bytes in 155 ns; first trigger after 13.2 to 14 us, 2 us at the end, 7 to 8 us are not counted.
    "v3": Constants(1.0, 60.0, 60.0, 4.0, 8.0),
    # No measured kernel is known: those of v3.
    "v4": Constants(1.0, 60.0, 60.0, 4.0, 8.0),
}
"""The numbers of public measurements, from which a fit starts, and which stand where it has no rows."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The constants of a generation, and factors that enclose the errors of kernels left out of their fit.

    interval: by the kind of a kernel (`plain`, `spills`, `short`) the factors of the lowest and highest time.
    known: in words, what both rest on.
    """

    constants: Constants
    interval: Mapping[str, tuple[float, float]]
    known: str


@cache
def shipped() -> Mapping[str, Fitted]:
    """Returns the constants of each generation of cores."""
    return {
        generation: parse(found)
        for generation, found in json.loads(FILE.read_text()).items()
        if generation in DOCUMENTED
    }


def parse(values: Mapping[str, Any]) -> Fitted:
    """Reads the constants of a generation.  Raises KeyError or TypeError where the file is incomplete."""
    interval = {kind: (float(low), float(high)) for kind, (low, high) in values["interval"].items()}
    return Fitted(Constants(**values["constants"]), interval, values["known"])


def as_json(fitted: Fitted) -> dict[str, Any]:
    return asdict(fitted)
