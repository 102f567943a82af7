"""`corepipe simulate`: a workload through a deployment in virtual time."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from corepipe.cli import options
from corepipe.planning.lengths import FORMS

WORKLOAD, RESULT = "Workload", "Result"

DEFAULT_USERS = 8
"""Of a closed loop, where neither a rate, users nor a trace is given: no deployment is overrun."""

DEFAULT_REQUESTS = 500
INPUT_LEN, OUTPUT_LEN = "512", "128"


class Arrival(StrEnum):
    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"


class TraceSchema(StrEnum):
    MOONCAKE = "mooncake"
    AZURE = "azure"
    BURSTGPT = "burstgpt"


def _option(*names: str, help: str, panel: str, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


Model = Annotated[
    str, typer.Argument(help="A directory, a config.json, a .gguf file, or a name such as llama-3.1-8b.")
]
Lnc = Annotated[
    int | None,
    typer.Option(
        "--lnc", help="Physical cores in a logical one (trn2: 1 or 2).", rich_help_panel=options.DEVICE
    ),
]
Rate = Annotated[
    float | None,
    _option("--rate", help="Requests a second (open loop); inf: all at once.", panel=WORKLOAD),
]
ArrivalOption = Annotated[Arrival, _option("--arrival", help="Gaps between requests.", panel=WORKLOAD)]
Burstiness = Annotated[
    float,
    _option("--burstiness", help="Shape of gamma gaps: below 1 bursty, above 1 regular.", panel=WORKLOAD),
]
Users = Annotated[
    int | None,
    _option(
        "--users",
        help=f"Closed loop: each waits for its answer; {DEFAULT_USERS} if nothing is given.",
        panel=WORKLOAD,
        min=1,
    ),
]
Think = Annotated[
    float, _option("--think-time", help="Seconds from an answer to the next request.", panel=WORKLOAD, min=0)
]
Requests = Annotated[
    int | None,
    _option(
        "--requests",
        help=f"How many; default: {DEFAULT_REQUESTS}, or all of a trace or --duration.",
        panel=WORKLOAD,
        min=1,
    ),
]
Duration = Annotated[
    float | None, _option("--duration", help="Seconds in which requests come.", panel=WORKLOAD, min=0)
]
InputLen = Annotated[str, _option("--input-len", help=f"Prompt tokens: {FORMS}.", panel=WORKLOAD)]
OutputLen = Annotated[str, _option("--output-len", help=f"Answer tokens: {FORMS}.", panel=WORKLOAD)]
Prefixes = Annotated[
    str | None,
    _option(
        "--prefix-tree",
        help="Shared prefixes before the prompts, BRANCHESxTOKENS a level: 1x512,8x256.",
        panel=WORKLOAD,
    ),
]
Turns = Annotated[
    int, _option("--turns", help="Turns of a conversation; each adds --input-len.", panel=WORKLOAD, min=1)
]
Trace = Annotated[
    Path | None, _option("--trace", help="Play this file's requests, at its times.", panel=WORKLOAD)
]
Schema = Annotated[
    TraceSchema | None,
    _option("--trace-format", help="Of --trace and --write-trace; default: as it looks.", panel=WORKLOAD),
]
WriteTrace = Annotated[
    Path | None,
    _option("--write-trace", help="Write the workload as a trace, and simulate nothing.", panel=WORKLOAD),
]
Seed = Annotated[int, _option("--seed", help="Of the workload.", panel=WORKLOAD)]
SloOption = Annotated[
    str | None,
    _option("--slo", help="For goodput, in milliseconds: 'ttft:500 tpot:50 e2e:10000'.", panel=RESULT),
]
AsJson = Annotated[bool, _option("--json", help="Print the result as JSON.", panel=RESULT)]
Output = Annotated[
    Path | None, _option("--output", "-o", help="Write the result here as JSON.", panel=RESULT)
]
Plot = Annotated[
    Path | None, _option("--plot", help="Write curves over time here, as an HTML page.", panel=RESULT)
]


def simulate(
    ctx: typer.Context,
    model: Model,
    dtype: options.Format = options.Dtype.BF16,
    max_model_len: options.MaxModelLen = None,
    instance: options.Instance = "inf2.xlarge",
    lnc: Lnc = None,
    mode: options.ModeOption = options.Mode.AUTO,
    pipeline: options.Pipeline = None,
    tensor: options.Tensor = None,
    data: options.Data = None,
    profile: options.Profile = None,
    max_num_seqs: options.MaxNumSeqs = 32,
    max_num_batched_tokens: options.MaxBatchedTokens = 512,
    policy: options.Policy = None,
    block_size: options.BlockSize = 32,
    num_blocks: options.NumBlocks = None,
    enable_prefix_caching: options.PrefixCaching = True,
    max_num_queued_reqs: options.MaxQueuedReqs = 1024,
    max_num_queued_tokens: options.MaxQueuedTokens = 1_000_000,
    rate: Rate = None,
    arrival: ArrivalOption = Arrival.POISSON,
    burstiness: Burstiness = 1.0,
    users: Users = None,
    think_time: Think = 0.0,
    requests: Requests = None,
    duration: Duration = None,
    input_len: InputLen = INPUT_LEN,
    output_len: OutputLen = OUTPUT_LEN,
    prefix_tree: Prefixes = None,
    turns: Turns = 1,
    trace: Trace = None,
    trace_format: Schema = None,
    write_trace: WriteTrace = None,
    seed: Seed = 0,
    slo: SloOption = None,
    as_json: AsJson = False,
    output: Output = None,
    plot: Plot = None,
) -> None:
    """Predict what a workload would see of MODEL on an instance: latencies, throughput, cost.

    Runs the server's own scheduler in virtual time; reads no weights.
    """
    from corepipe.cli.run.simulate import run  # noqa: PLC0415 -- heavy: the other commands do without

    run(ctx.params)
