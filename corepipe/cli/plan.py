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
    str | None, _option("--ttft", help="Longest time to the first token, as 500ms or 0.5s.", panel=OBJECTIVES)
]
Tpot = Annotated[
    str | None, _option("--tpot", help="Longest time per token after it, as 50ms.", panel=OBJECTIVES)
]
Percentile = Annotated[
    float,
    _option("--percentile", help="Of requests that must meet them.", panel=OBJECTIVES, min=1, max=100),
]
Margin = Annotated[
    float,
    _option(
        "--margin",
        help="Percent by which predictions must be below the objectives.",
        panel=OBJECTIVES,
        min=0,
        max=90,
    ),
]
Confidence = Annotated[
    float | None,
    _option(
        "--confidence",
        help="Rank by intervals of this probability, as 0.9, and choose only what they tell apart.",
        panel=OBJECTIVES,
        min=0.5,
        max=0.99,
    ),
]
NextMeasurement = Annotated[
    bool,
    _option("--next-measurement", help="Name the measurement that would tell most apart.", panel=OUTPUT),
]
TimeLimit = Annotated[
    str | None,
    _option("--time-limit", help="End the search after so long, as 30s, with the best so far.", panel=OUTPUT),
]
Rate = Annotated[
    float | None, _option("--rate", help="Requests a second, of a Poisson process.", panel=WORKLOAD)
]
InputLen = Annotated[
    str,
    _option("--input-len", help="Prompt tokens: a number or a distribution, as simulate's.", panel=WORKLOAD),
]
OutputLen = Annotated[
    str,
    _option("--output-len", help="Answer tokens: a number or a distribution, as simulate's.", panel=WORKLOAD),
]
Requests = Annotated[
    int | None,
    _option("--requests", help="Of a simulation; default: as many as it takes.", panel=WORKLOAD, min=2),
]
Seed = Annotated[int, _option("--seed", help="Of the workload.", panel=WORKLOAD)]
PricesFile = Annotated[
    Path | None,
    _option("--prices", help="CSV or JSON of instance,purchase,region,$/h, for the list's.", panel=CHOICES),
]
Region = Annotated[str, _option("--region", help="Where the instances are.", panel=CHOICES)]
PurchaseOption = Annotated[Purchase, _option("--purchase", help="How they are bought.", panel=CHOICES)]
MaxError = Annotated[
    float | None,
    _option("--max-error", help="Only what is validated to within so many percent.", panel=CHOICES, min=0),
]
EmitOption = Annotated[
    Emit | None,
    _option("--emit", help="Print the choice's Helm values, or vLLM on Neuron's manifests.", panel=OUTPUT),
]
BucketsOption = Annotated[
    bool,
    _option(
        "--buckets",
        help="Which lengths to compile graphs for, on one --instance, for the lengths alone.",
        panel=BUCKETS,
    ),
]
GraphsOption = Annotated[
    int | None,
    _option("--graphs", help="Most graphs; default: as many as the stack compiles.", panel=BUCKETS, min=2),
]
TraceOption = Annotated[
    Path | None,
    _option("--trace", help="Lengths of this file's requests; default: --input-len's.", panel=BUCKETS),
]
TraceFormatOption = Annotated[
    TraceSchema | None, _option("--trace-format", help="Of --trace; default: as it looks.", panel=BUCKETS)
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
