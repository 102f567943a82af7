"""`corepipe simulate`: a workload through a deployment in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from corepipe.cli.flags import workload
from corepipe.cli.flags.defaults import SIMULATED_REQUESTS, USERS
from corepipe.cli.flags.options import Model, option
from corepipe.cli.flags.workload import RESULT, WORKLOAD

Users = Annotated[
    int | None,
    option(
        "--users",
        help=f"Users of a closed loop, each of whom waits for the answer before the next "
        f"request; default: {USERS}.",
        panel=WORKLOAD,
        min=1,
    ),
]
Requests = Annotated[
    int | None,
    option(
        "--requests",
        help=f"Requests to simulate; default: {SIMULATED_REQUESTS}, or all of a trace or of --duration.",
        panel=WORKLOAD,
        min=1,
    ),
]
WriteTrace = Annotated[
    Path | None,
    option(
        "--write-trace",
        help="File to write the workload to, as a trace; nothing is simulated then.",
        panel=WORKLOAD,
    ),
]
AsJson = Annotated[bool, option("--json", help="Print the result as JSON.", panel=RESULT)]
Output = Annotated[
    Path | None, option("--output", "-o", help="File to write the result to, as JSON.", panel=RESULT)
]
Plot = Annotated[Path | None, option("--plot", help="HTML page to write curves over time to.", panel=RESULT)]


def setting_flags() -> list[Any]:
    """Returns the flags that are fields of the engine's configuration."""
    from corepipe.cli.flags import fields  # noqa: PLC0415 -- heavy: the help of all commands does without

    return fields.parameters(
        [
            fields.TIMED_FORMAT,
            *fields.of_engine("max_model_len", "task", "instance", "lnc", "mode", *fields.DEGREES, "profile"),
            *fields.of_engine("max_num_seqs", "max_num_batched_tokens", "max_batch_delay", "policy"),
            fields.ASSUMED_DRAFTS,
            *fields.of_engine("block_size", "num_blocks", "prefix_cache"),
            *fields.of_engine("max_queued_requests", "max_queued_tokens"),
        ]
    )


def simulate(
    ctx: typer.Context,
    model: Model,
    rate: workload.Rate = None,
    arrival: workload.ArrivalOption = workload.Arrival.POISSON,
    burstiness: workload.Burstiness = 1.0,
    users: Users = None,
    think_time: workload.Think = 0.0,
    requests: Requests = None,
    duration: workload.Duration = None,
    input_len: workload.InputLen = workload.INPUT_LEN,
    output_len: workload.OutputLen = workload.OUTPUT_LEN,
    prefix_tree: workload.Prefixes = None,
    turns: workload.Turns = 1,
    trace: workload.Trace = None,
    trace_speed: workload.TraceSpeed = 1.0,
    trace_format: workload.Schema = None,
    write_trace: WriteTrace = None,
    seed: workload.Seed = 0,
    slo: workload.SloOption = None,
    as_json: AsJson = False,
    output: Output = None,
    plot: Plot = None,
) -> None:
    """Predict what a workload would see of MODEL on an instance: latencies, throughput, cost.

    Runs the server's own scheduler in virtual time; reads no weights.
    """
    from corepipe.cli.run.simulate import run  # noqa: PLC0415 -- heavy: the other commands do without

    run(ctx.params)
