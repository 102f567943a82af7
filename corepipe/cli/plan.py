"""Find the cheapest deployment of MODEL that meets latency objectives at a rate.

Searches instances, placements, formats and batch limits in virtual time; reads no weights.  With
--buckets: the lengths to compile graphs for on one instance.
"""

from __future__ import annotations

from functools import partial
from inspect import Parameter
from pathlib import Path

from corepipe.cli.flags.options import MODEL, Emit, as_json, option
from corepipe.cli.flags.workload import SEED, TraceSchema, load
from corepipe.planning.planner.purchase import REGION, Purchase

CHOICES, OUTPUT, BUCKETS = "What to choose from", "Output", "Graphs to compile"

objective, choice = partial(option, panel="Objectives"), partial(option, panel=CHOICES)
output, compiled = partial(option, panel=OUTPUT), partial(option, panel=BUCKETS)


def flags() -> list[Parameter]:
    """Returns the flags."""
    return [MODEL, *_engine(), *_demand(), *_choices(), *_compiled(), as_json(OUTPUT)]


def _engine() -> list[Parameter]:
    """Returns those that are fields of the engine's configuration."""
    from corepipe.cli.flags.fields import drafts, flag, of_engine  # noqa: PLC0415 -- heavy
    from corepipe.engine.config import EngineConfig  # noqa: PLC0415 -- as above

    several = partial(flag, EngineConfig, panel=CHOICES, several=True)
    return [
        *of_engine("max_model_len"),
        several("instance", "Instance size that may be chosen (repeatable); default: all."),
        several("format", "Number format that may be chosen (repeatable); default: bf16 and int8-weights."),
        several("profile", "Software stack that may be chosen: a name, or a profile file (repeatable)."),
        flag(EngineConfig, "kernels", panel=CHOICES),
        drafts(
            "Try speculative decoding as well, with an assumed share of drafts that are accepted; JSON "
            "as for corepipe simulate.",
            CHOICES,
        ),
        flag(EngineConfig, "tensor", "Cores that share each layer; default: the fewest.", BUCKETS),
        flag(EngineConfig, "max_num_seqs", "Sequences of a decode step.", BUCKETS, unset=True),
    ]


def _demand() -> list[Parameter]:
    length = "a number or a distribution, as for corepipe simulate."
    return [
        load("--rate", float, "Rate of the requests, in requests a second (Poisson arrivals)."),
        objective("--ttft", str, "Objective: longest time to the first token, such as 500ms or 0.5s."),
        objective("--tpot", str, "Objective: longest time per token after the first, such as 50ms."),
        objective(
            "--percentile",
            float,
            "Percentage of the requests that must meet the objectives.",
            99.0,
            min=1,
            max=100,
        ),
        objective(
            "--margin",
            float,
            "Safety margin: percent by which predictions must be below the objectives.",
            0.0,
            min=0,
            max=90,
        ),
        objective(
            "--confidence",
            float,
            "Probability of the intervals, such as 0.9, by which deployments are ranked; one is chosen only "
            "if its interval tells it from the others.",
            min=0.5,
            max=0.99,
        ),
        output(
            "--next-measurement",
            bool,
            "Print the measurement that would distinguish most of the deployments.",
        ),
        load("--input-len", str, f"Tokens of a prompt: {length}", "1024"),
        load("--output-len", str, f"Tokens of an answer: {length}", "256"),
        load("--requests", int, "Requests of each simulation; default: as many as it takes.", min=2),
        SEED,
    ]


def _choices() -> list[Parameter]:
    return [
        choice(
            "--prices", Path, "CSV or JSON file of instance,purchase,region,$/h, in place of the list prices."
        ),
        choice("--region", str, "AWS region of the instances.", REGION),
        choice("--purchase", Purchase, "Purchase option of the instances.", Purchase.ON_DEMAND),
        choice(
            "--max-error",
            float,
            "Largest validated error, in percent, that a deployment's predictions may have.",
            min=0,
        ),
        output(
            "--emit",
            Emit,
            "Print the chosen deployment as Helm values, or as Kubernetes manifests of vLLM on Neuron.",
        ),
        output(
            "--time-limit",
            str,
            "Longest time of the search, such as 30s; the best that was found by then is printed.",
        ),
    ]


def _compiled() -> list[Parameter]:
    return [
        compiled(
            "--buckets",
            bool,
            "Choose the lengths to compile graphs for, on one --instance; rates and prices play no part.",
        ),
        compiled(
            "--graphs",
            int,
            "Most graphs to compile; default: as many as the software stack compiles.",
            min=2,
        ),
        compiled(
            "--trace",
            Path,
            "File of recorded requests, whose lengths are taken; default: those of --input-len.",
        ),
        compiled(
            "--trace-format",
            TraceSchema,
            "Format of the file of --trace; default: detected from the file.",
        ),
    ]
