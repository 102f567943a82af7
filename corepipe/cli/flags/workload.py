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
    option("--rate", help=f"Rate of an open loop, in requests a second: {RATE_FORMS}.", panel=WORKLOAD),
]
ArrivalOption = Annotated[
    Arrival, option("--arrival", help="Distribution of the gaps between requests.", panel=WORKLOAD)
]
Burstiness = Annotated[
    float,
    option(
        "--burstiness",
        help="Shape of the gamma distribution of gaps: below 1 bursty, above 1 regular.",
        panel=WORKLOAD,
    ),
]
Think = Annotated[
    float,
    option(
        "--think-time",
        help="Seconds from an answer to the next request of the same user.",
        panel=WORKLOAD,
        min=0,
    ),
]
Duration = Annotated[
    float | None, option("--duration", help="Seconds during which requests arrive.", panel=WORKLOAD, min=0)
]
InputLen = Annotated[str, option("--input-len", help=f"Tokens of a prompt: {FORMS}.", panel=WORKLOAD)]
OutputLen = Annotated[str, option("--output-len", help=f"Tokens of an answer: {FORMS}.", panel=WORKLOAD)]
Prefixes = Annotated[
    str | None,
    option(
        "--prefix-tree",
        help="Prefixes that prompts share, as BRANCHESxTOKENS for each level of a tree, such as 1x512,8x256.",
        panel=WORKLOAD,
    ),
]
Turns = Annotated[
    int,
    option(
        "--turns",
        help="Turns of each conversation; each adds a message of --input-len tokens.",
        panel=WORKLOAD,
        min=1,
    ),
]
Trace = Annotated[
    Path | None,
    option(
        "--trace",
        help="File of recorded requests, which are sent again at their recorded times.",
        panel=WORKLOAD,
    ),
]
TraceSpeed = Annotated[
    float,
    option(
        "--trace-speed", help="Factor by which a trace is played faster than it was recorded.", panel=WORKLOAD
    ),
]
Schema = Annotated[
    TraceSchema | None,
    option(
        "--trace-format",
        help="Format of the file of --trace or --write-trace; default: detected from the file.",
        panel=WORKLOAD,
    ),
]
Seed = Annotated[int, option("--seed", help="Random seed of the workload.", panel=WORKLOAD)]
SloOption = Annotated[
    str | None,
    option(
        "--slo",
        help="Objectives that goodput counts, with units, such as 'ttft:500ms tpot:50ms e2e:10s'.",
        panel=RESULT,
    ),
]
