"""`corepipe bench`: puts load on an OpenAI-compatible server and measures latencies."""

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
Model = Annotated[
    str | None,
    option(
        "--model",
        help="Name of the model on the server; default: the first that the server lists.",
        panel=TARGET,
    ),
]
Api = Annotated[ApiChoice, option("--api", help="API that the requests are sent to.", panel=TARGET)]
ApiKey = Annotated[
    str | None,
    option(
        "--api-key",
        help="API key to send; of several, separated by spaces, the first.",
        panel=TARGET,
        envvar="COREPIPE_API_KEY",
    ),
]
TokenizerOption = Annotated[
    str | None,
    option(
        "--tokenizer",
        help="Tokenizer that counts tokens: a directory, .gguf file or hub id; default: the server "
        "counts them.",
        panel=TARGET,
    ),
]
ExtraBody = Annotated[
    str | None,
    option(
        "--extra-body",
        help="JSON object of further fields of each request; null removes a field.",
        panel=TARGET,
    ),
]
Timeout = Annotated[
    float,
    option(
        "--timeout",
        help="Seconds after which a request without a whole answer has failed.",
        panel=TARGET,
        min=0.001,
        max=86_400,
    ),
]
Wait = Annotated[
    float, option("--wait", help="Seconds to wait for the server to start.", panel=TARGET, min=0, max=86_400)
]
Concurrency = Annotated[
    int | None,
    option(
        "--concurrency",
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
        help=f"Requests to send; default: {SENT_REQUESTS}, or all of a trace or of --duration.",
        panel=WORKLOAD,
        min=1,
    ),
]
Documents = Annotated[
    int | None,
    option(
        "--documents",
        help=f"Documents to rank for each query of --api rerank; query and document together have "
        f"--input-len tokens; default: {DOCUMENTS}.",
        panel=WORKLOAD,
        min=1,
        max=1024,
    ),
]
Sweep = Annotated[
    bool,
    option(
        "--sweep",
        help="Measure at rising rates until the server is saturated, for --duration seconds each; "
        "--rate A,B,C chooses the rates.",
        panel=WORKLOAD,
    ),
]
Cancel = Annotated[
    float,
    option(
        "--cancel",
        help="Share of the requests whose connection is closed in the middle of the answer.",
        panel=WORKLOAD,
        min=0,
        max=1,
    ),
]
Warmup = Annotated[
    int,
    option(
        "--warmup",
        help="Requests that are sent before the measurement and not counted.",
        panel=WORKLOAD,
        min=0,
    ),
]
Salt = Annotated[
    str | None,
    option(
        "--salt",
        help="Text that seeds the words of the prompts; default: random, so that no prefix cache has them.",
        panel=WORKLOAD,
    ),
]
Assertions = Annotated[
    list[str] | None,
    option(
        "--assert",
        help="Condition on the result, such as 'p99_ttft_ms<500' (repeatable); exit code 3 if it is not met.",
        panel=RESULT,
    ),
]
Compare = Annotated[
    Path | None,
    option("--compare", help="File of an older result, to which the new one is compared.", panel=RESULT),
]
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
