"""The flags that describe a workload, alike for a simulation and for a load test, and their defaults."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from inspect import Parameter
from pathlib import Path

from corepipe.cli.flags.options import option
from corepipe.workload.arrivals import RATE_FORMS
from corepipe.workload.lengths import FORMS

WORKLOAD, RESULT = "Workload", "Result"

INPUT_LEN, OUTPUT_LEN = "512", "128"

USERS = 8
"""Users of a closed loop, where neither a rate, users nor a trace is given: no deployment is overrun."""

SIMULATED_REQUESTS = 500
SENT_REQUESTS = 100
"""Requests of a load test without a trace and without --duration."""

STAGE_SECONDS = 20.0
"""Seconds of a stage of a sweep without --duration."""

DOCUMENTS = 10
"""Documents for each query of a load test that ranks."""


class Arrival(StrEnum):
    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"


class TraceSchema(StrEnum):
    MOONCAKE = "mooncake"
    AZURE = "azure"
    BURSTGPT = "burstgpt"
    OTEL = "otel"


load, result = partial(option, panel=WORKLOAD), partial(option, panel=RESULT)

RATE = load("--rate", str, f"Rate of an open loop, in requests a second: {RATE_FORMS}.")
GAPS = (
    load("--arrival", Arrival, "Distribution of the gaps between requests.", Arrival.POISSON),
    load(
        "--burstiness",
        float,
        "Shape of the gamma distribution of gaps: below 1 bursty, above 1 regular.",
        1.0,
    ),
)
THINK_TIME = load(
    "--think-time", float, "Seconds from an answer to the next request of the same user.", 0.0, min=0
)
DURATION = load("--duration", float, "Seconds during which requests arrive.", min=0)
SIZES = (
    load("--input-len", str, f"Tokens of a prompt: {FORMS}.", INPUT_LEN),
    load("--output-len", str, f"Tokens of an answer: {FORMS}.", OUTPUT_LEN),
    load(
        "--prefix-tree",
        str,
        "Prefixes that prompts share, as BRANCHESxTOKENS for each level of a tree, such as 1x512,8x256.",
    ),
)
TURNS = load(
    "--turns", int, "Turns of each conversation; each adds a message of --input-len tokens.", 1, min=1
)
TRACE = (
    load("--trace", Path, "File of recorded requests, which are sent again at their recorded times."),
    load("--trace-speed", float, "Factor by which a trace is played faster than it was recorded.", 1.0),
    load(
        "--trace-format",
        TraceSchema,
        "Format of the file of --trace or --write-trace; default: detected from the file.",
    ),
)
ADAPTERS = (
    load(
        "--adapters",
        int,
        "LoRA adapters that requests use, each one of them at random; the device has all beside the model.",
        min=1,
        max=256,
    ),
    load("--adapter-rank", int, "Rank of the adapters, which change all linear layers.", 16, min=1, max=512),
)
SEED = load("--seed", int, "Random seed of the workload.", 0)
SLO = result(
    "--slo", str, "Objectives that goodput counts, with units, such as 'ttft:500ms tpot:50ms e2e:10s'."
)


def users(flag: str) -> Parameter:
    """Returns the flag for the users of a closed loop."""
    text = "Users of a closed loop, each of whom waits for the answer before the next request"
    return load(flag, int, f"{text}; default: {USERS}.", min=1)


def requests(verb: str, default: int) -> Parameter:
    """Returns `--requests`; verb: what is done with them."""
    text = f"Requests to {verb}; default: {default}, or all of a trace or of --duration."
    return load("--requests", int, text, min=1)
