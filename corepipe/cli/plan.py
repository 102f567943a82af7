"""`corepipe plan`: the cheapest deployment that meets latency objectives at a rate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from corepipe.cli.flags.options import Emit, Model
from corepipe.cli.flags.options import option as _option
from corepipe.cli.flags.workload import TraceSchema
from corepipe.planning.planner.purchase import REGION, Purchase

OBJECTIVES, WORKLOAD, CHOICES, OUTPUT = "Objectives", "Workload", "What to choose from", "Output"
BUCKETS = "Graphs to compile"


Ttft = Annotated[
    str | None,
    _option(
        "--ttft", help="Objective: longest time to the first token, such as 500ms or 0.5s.", panel=OBJECTIVES
    ),
]
Tpot = Annotated[
    str | None,
    _option(
        "--tpot", help="Objective: longest time per token after the first, such as 50ms.", panel=OBJECTIVES
    ),
]
Percentile = Annotated[
    float,
    _option(
        "--percentile",
        help="Percentage of the requests that must meet the objectives.",
        panel=OBJECTIVES,
        min=1,
        max=100,
    ),
]
Margin = Annotated[
    float,
    _option(
        "--margin",
        help="Safety margin: percent by which predictions must be below the objectives.",
        panel=OBJECTIVES,
        min=0,
        max=90,
    ),
]
Confidence = Annotated[
    float | None,
    _option(
        "--confidence",
        help="Probability of the intervals, such as 0.9, by which deployments are ranked; one is chosen only "
        "if its interval tells it from the others.",
        panel=OBJECTIVES,
        min=0.5,
        max=0.99,
    ),
]
NextMeasurement = Annotated[
    bool,
    _option(
        "--next-measurement",
        help="Print the measurement that would distinguish most of the deployments.",
        panel=OUTPUT,
    ),
]
TimeLimit = Annotated[
    str | None,
    _option(
        "--time-limit",
        help="Longest time of the search, such as 30s; the best that was found by then is printed.",
        panel=OUTPUT,
    ),
]
Rate = Annotated[
    float | None,
    _option("--rate", help="Rate of the requests, in requests a second (Poisson arrivals).", panel=WORKLOAD),
]
InputLen = Annotated[
    str,
    _option(
        "--input-len",
        help="Tokens of a prompt: a number or a distribution, as for corepipe simulate.",
        panel=WORKLOAD,
    ),
]
OutputLen = Annotated[
    str,
    _option(
        "--output-len",
        help="Tokens of an answer: a number or a distribution, as for corepipe simulate.",
        panel=WORKLOAD,
    ),
]
Requests = Annotated[
    int | None,
    _option(
        "--requests", help="Requests of each simulation; default: as many as it takes.", panel=WORKLOAD, min=2
    ),
]
Seed = Annotated[int, _option("--seed", help="Random seed of the workload.", panel=WORKLOAD)]
PricesFile = Annotated[
    Path | None,
    _option(
        "--prices",
        help="CSV or JSON file of instance,purchase,region,$/h, in place of the list prices.",
        panel=CHOICES,
    ),
]
Region = Annotated[str, _option("--region", help="AWS region of the instances.", panel=CHOICES)]
PurchaseOption = Annotated[
    Purchase, _option("--purchase", help="Purchase option of the instances.", panel=CHOICES)
]
MaxError = Annotated[
    float | None,
    _option(
        "--max-error",
        help="Largest validated error, in percent, that a deployment's predictions may have.",
        panel=CHOICES,
        min=0,
    ),
]
EmitOption = Annotated[
    Emit | None,
    _option(
        "--emit",
        help="Print the chosen deployment as Helm values, or as Kubernetes manifests of vLLM on Neuron.",
        panel=OUTPUT,
    ),
]
BucketsOption = Annotated[
    bool,
    _option(
        "--buckets",
        help="Choose the lengths to compile graphs for, on one --instance; rates and prices play no part.",
        panel=BUCKETS,
    ),
]
GraphsOption = Annotated[
    int | None,
    _option(
        "--graphs",
        help="Most graphs to compile; default: as many as the software stack compiles.",
        panel=BUCKETS,
        min=2,
    ),
]
TraceOption = Annotated[
    Path | None,
    _option(
        "--trace",
        help="File of recorded requests, whose lengths are taken; default: those of --input-len.",
        panel=BUCKETS,
    ),
]
TraceFormatOption = Annotated[
    TraceSchema | None,
    _option(
        "--trace-format",
        help="Format of the file of --trace; default: detected from the file.",
        panel=BUCKETS,
    ),
]
AsJson = Annotated[bool, _option("--json", help="Print the result as JSON.", panel=OUTPUT)]


def setting_flags() -> list[Any]:
    """Returns the flags that are fields of the engine's configuration."""
    from corepipe.cli.flags.fields import Use, drafts, of_engine, parameters  # noqa: PLC0415 -- heavy
    from corepipe.engine.config import EngineConfig  # noqa: PLC0415 -- as above

    def choice(field: str, text: str) -> Use:
        return Use(EngineConfig, field, text, CHOICES, several=True)

    return parameters(
        [
            *of_engine("max_model_len"),
            choice("instance", "Instance size that may be chosen (repeatable); default: all."),
            choice(
                "format", "Number format that may be chosen (repeatable); default: bf16 and int8-weights."
            ),
            choice("profile", "Software stack that may be chosen: a name, or a profile file (repeatable)."),
            drafts(
                "Try speculative decoding as well, with an assumed share of drafts that are accepted; JSON "
                "as for corepipe simulate.",
                CHOICES,
            ),
            Use(EngineConfig, "tensor", "Cores that share each layer; default: the fewest.", BUCKETS),
            Use(EngineConfig, "max_num_seqs", "Sequences of a decode step.", BUCKETS, unset=True),
        ]
    )


def plan(
    ctx: typer.Context,
    model: Model,
    rate: Rate = None,
    ttft: Ttft = None,
    tpot: Tpot = None,
    percentile: Percentile = 99.0,
    margin: Margin = 0.0,
    confidence: Confidence = None,
    next_measurement: NextMeasurement = False,
    input_len: InputLen = "1024",
    output_len: OutputLen = "256",
    requests: Requests = None,
    seed: Seed = 0,
    prices: PricesFile = None,
    region: Region = REGION,
    purchase: PurchaseOption = Purchase.ON_DEMAND,
    max_error: MaxError = None,
    emit: EmitOption = None,
    time_limit: TimeLimit = None,
    buckets: BucketsOption = False,
    graphs: GraphsOption = None,
    trace: TraceOption = None,
    trace_format: TraceFormatOption = None,
    as_json: AsJson = False,
) -> None:
    """Find the cheapest deployment of MODEL that meets latency objectives at a rate.

    Searches instances, placements, formats and batch limits in virtual time; reads no weights.  With
    --buckets: the lengths to compile graphs for on one instance.
    """
    if buckets:
        from corepipe.cli.run import buckets as command  # noqa: PLC0415 -- heavy: the others do without
    else:
        from corepipe.cli.run import plan as command  # type: ignore[no-redef]  # noqa: PLC0415 -- as above

    command.run(ctx.params)
