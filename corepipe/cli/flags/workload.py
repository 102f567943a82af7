"""The flags that describe a workload, alike for a simulation and for a load test."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from corepipe.cli.flags.options import option
from corepipe.workload.arrivals import RATE_FORMS
from corepipe.workload.lengths import FORMS

WORKLOAD, RESULT = "Workload", "Result"

INPUT_LEN, OUTPUT_LEN = "512", "128"


class Arrival(StrEnum):
    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"


class TraceSchema(StrEnum):
    MOONCAKE = "mooncake"
    AZURE = "azure"
    BURSTGPT = "burstgpt"
    OTEL = "otel"


Rate = Annotated[
    str | None,
    option("--rate", help=f"Requests a second (open loop): {RATE_FORMS}.", panel=WORKLOAD),
]
ArrivalOption = Annotated[Arrival, option("--arrival", help="Gaps between requests.", panel=WORKLOAD)]
Burstiness = Annotated[
    float,
    option("--burstiness", help="Shape of gamma gaps: below 1 bursty, above 1 regular.", panel=WORKLOAD),
]
Think = Annotated[
    float, option("--think-time", help="Seconds from an answer to the next request.", panel=WORKLOAD, min=0)
]
Duration = Annotated[
    float | None, option("--duration", help="Seconds in which requests come.", panel=WORKLOAD, min=0)
]
InputLen = Annotated[str, option("--input-len", help=f"Prompt tokens: {FORMS}.", panel=WORKLOAD)]
OutputLen = Annotated[str, option("--output-len", help=f"Answer tokens: {FORMS}.", panel=WORKLOAD)]
Prefixes = Annotated[
    str | None,
    option(
        "--prefix-tree",
        help="Shared prefixes before the prompts, BRANCHESxTOKENS a level: 1x512,8x256.",
        panel=WORKLOAD,
    ),
]
Turns = Annotated[
    int, option("--turns", help="Turns of a conversation; each adds --input-len.", panel=WORKLOAD, min=1)
]
Trace = Annotated[
    Path | None, option("--trace", help="Play this file's requests, at its times.", panel=WORKLOAD)
]
TraceSpeed = Annotated[
    float, option("--trace-speed", help="Play a trace so many times as fast.", panel=WORKLOAD)
]
Schema = Annotated[
    TraceSchema | None,
    option("--trace-format", help="Of --trace and --write-trace; default: as it looks.", panel=WORKLOAD),
]
Seed = Annotated[int, option("--seed", help="Of the workload.", panel=WORKLOAD)]
SloOption = Annotated[
    str | None,
    option("--slo", help="For goodput, with units: 'ttft:500ms tpot:50ms e2e:10s'.", panel=RESULT),
]
