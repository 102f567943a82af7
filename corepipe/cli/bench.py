"""`corepipe bench`: load on any OpenAI-compatible server, and what it did to latencies."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from corepipe.cli.flags import workload
from corepipe.cli.flags.defaults import DOCUMENTS, SENT_REQUESTS, USERS
from corepipe.cli.flags.options import option
from corepipe.cli.flags.workload import RESULT, WORKLOAD

TARGET = "Server"


class ApiChoice(StrEnum):
    COMPLETIONS = "completions"
    CHAT = "chat"
    EMBEDDINGS = "embeddings"
    CLASSIFY = "classify"
    RERANK = "rerank"


Url = Annotated[str, typer.Argument(help="Base URL of the server, with or without /v1.")]
Model = Annotated[str | None, option("--model", help="Its name there; default: the first.", panel=TARGET)]
Api = Annotated[ApiChoice, option("--api", help="Which API to ask.", panel=TARGET)]
ApiKey = Annotated[
    str | None,
    option(
        "--api-key", help="Key to send; of several words the first.", panel=TARGET, envvar="COREPIPE_API_KEY"
    ),
]
TokenizerOption = Annotated[
    str | None,
    option(
        "--tokenizer",
        help="Directory, .gguf file or hub id that counts tokens; default: the server.",
        panel=TARGET,
    ),
]
ExtraBody = Annotated[
    str | None,
    option("--extra-body", help="JSON of further fields; null leaves one out.", panel=TARGET),
]
Timeout = Annotated[
    float, option("--timeout", help="Seconds for a whole answer.", panel=TARGET, min=0.001, max=86_400)
]
Wait = Annotated[
    float, option("--wait", help="Seconds for the server to come up.", panel=TARGET, min=0, max=86_400)
]
Concurrency = Annotated[
    int | None,
    option(
        "--concurrency",
        help=f"Closed loop: each waits for its answer; {USERS} if nothing is given.",
        panel=WORKLOAD,
        min=1,
    ),
]
Requests = Annotated[
    int | None,
    option(
        "--requests",
        help=f"How many; default: {SENT_REQUESTS}, or all of a trace or --duration.",
        panel=WORKLOAD,
        min=1,
    ),
]
Documents = Annotated[
    int | None,
    option(
        "--documents",
        help=f"Of --api rerank: to rank for each query, each --input-len with it; default: {DOCUMENTS}.",
        panel=WORKLOAD,
        min=1,
        max=1024,
    ),
]
Sweep = Annotated[
    bool,
    option(
        "--sweep",
        help="Rates up to saturation, --duration seconds each; --rate A,B,C chooses them.",
        panel=WORKLOAD,
    ),
]
Cancel = Annotated[
    float,
    option("--cancel", help="Share of requests to hang up on in the middle.", panel=WORKLOAD, min=0, max=1),
]
Warmup = Annotated[
    int, option("--warmup", help="Requests to send first, and not to count.", panel=WORKLOAD, min=0)
]
Salt = Annotated[
    str | None,
    option("--salt", help="Of the prompts' words; default: new ones, in no prefix cache.", panel=WORKLOAD),
]
Assertions = Annotated[
    list[str] | None,
    option("--assert", help="Condition, as 'p99_ttft_ms<500' (repeatable); else exit 3.", panel=RESULT),
]
Compare = Annotated[Path | None, option("--compare", help="An older result, for ratios to it.", panel=RESULT)]
AsJson = Annotated[bool, option("--json", help="Print the result as JSON.", panel=RESULT)]
Output = Annotated[
    Path | None,
    option(
        "--output",
        "-o",
        help="Write result.json, requests.csv and report.html into this directory.",
        panel=RESULT,
    ),
]


def bench(
    ctx: typer.Context,
    url: Url = "http://127.0.0.1:8000",
    model: Model = None,
    api: Api = ApiChoice.COMPLETIONS,
    api_key: ApiKey = None,
    tokenizer: TokenizerOption = None,
    extra_body: ExtraBody = None,
    timeout: Timeout = 600.0,
    wait: Wait = 0.0,
    concurrency: Concurrency = None,
    rate: workload.Rate = None,
    arrival: workload.ArrivalOption = workload.Arrival.POISSON,
    burstiness: workload.Burstiness = 1.0,
    think_time: workload.Think = 0.0,
    requests: Requests = None,
    duration: workload.Duration = None,
    input_len: workload.InputLen = workload.INPUT_LEN,
    output_len: workload.OutputLen = workload.OUTPUT_LEN,
    prefix_tree: workload.Prefixes = None,
    documents: Documents = None,
    turns: workload.Turns = 1,
    trace: workload.Trace = None,
    trace_speed: workload.TraceSpeed = 1.0,
    trace_format: workload.Schema = None,
    sweep: Sweep = False,
    cancel: Cancel = 0.0,
    warmup: Warmup = 0,
    seed: workload.Seed = 0,
    salt: Salt = None,
    slo: workload.SloOption = None,
    assertions: Assertions = None,
    compare: Compare = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Put load on the OpenAI-compatible server at URL, and measure what its clients see.

    Open loop (--rate), closed loop (--concurrency), a trace, or a sweep of rates to saturation.
    """
    from corepipe.cli.run.bench import run  # noqa: PLC0415 -- heavy: the other commands do without

    run(ctx.params)
