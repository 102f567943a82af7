"""`corepipe simulate`: a workload through a deployment in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from corepipe.cli.flags import options, workload
from corepipe.cli.flags.defaults import SIMULATED_REQUESTS, USERS
from corepipe.cli.flags.workload import RESULT, WORKLOAD, option
from corepipe.scheduler import defaults

Model = Annotated[
    str, typer.Argument(help="A directory, a config.json, a .gguf file, or a name such as llama-3.1-8b.")
]
Lnc = Annotated[
    int | None,
    typer.Option(
        "--lnc", help="Physical cores in a logical one (trn2, trn3: 1 or 2).", rich_help_panel=options.DEVICE
    ),
]
Users = Annotated[
    int | None,
    option(
        "--users",
        help=f"Closed loop: each waits for its answer; {USERS} if nothing is given.",
        panel=WORKLOAD,
        min=1,
    ),
]
Requests = Annotated[
    int | None,
    option(
        "--requests",
        help=f"How many; default: {SIMULATED_REQUESTS}, or all of a trace or --duration.",
        panel=WORKLOAD,
        min=1,
    ),
]
WriteTrace = Annotated[
    Path | None,
    option("--write-trace", help="Write the workload as a trace, and simulate nothing.", panel=WORKLOAD),
]
AsJson = Annotated[bool, option("--json", help="Print the result as JSON.", panel=RESULT)]
Output = Annotated[Path | None, option("--output", "-o", help="Write the result here as JSON.", panel=RESULT)]
Plot = Annotated[
    Path | None, option("--plot", help="Write curves over time here, as an HTML page.", panel=RESULT)
]


def simulate(
    ctx: typer.Context,
    model: Model,
    dtype: options.TimedFormat = options.TimedDtype.BF16,
    max_model_len: options.MaxModelLen = None,
    task: options.TaskOption = options.Task.AUTO,
    instance: options.Instance = "inf2.xlarge",
    lnc: Lnc = None,
    mode: options.ModeOption = options.Mode.AUTO,
    pipeline: options.Pipeline = None,
    tensor: options.Tensor = None,
    data: options.Data = None,
    expert: options.Expert = None,
    profile: options.Profile = None,
    max_num_seqs: options.MaxNumSeqs = defaults.MAX_NUM_SEQS,
    max_num_batched_tokens: options.MaxBatchedTokens = defaults.MAX_NUM_BATCHED_TOKENS,
    max_batch_delay: options.MaxBatchDelay = 0.0,
    policy: options.Policy = None,
    speculative_config: options.AssumedGuesses = None,
    block_size: options.BlockSize = defaults.BLOCK_SIZE,
    num_blocks: options.NumBlocks = None,
    enable_prefix_caching: options.PrefixCaching = True,
    max_num_queued_reqs: options.MaxQueuedReqs = defaults.MAX_QUEUED_REQUESTS,
    max_num_queued_tokens: options.MaxQueuedTokens = defaults.MAX_QUEUED_TOKENS,
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
