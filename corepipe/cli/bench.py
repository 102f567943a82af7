"""Put load on the OpenAI-compatible server at URL, and measure what its clients see.

Open loop (--rate), closed loop (--concurrency), a trace, or a sweep of rates to saturation.
"""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from inspect import Parameter
from pathlib import Path

from corepipe.cli.flags import workload
from corepipe.cli.flags.options import LOCAL_SERVER, argument, as_json, option
from corepipe.cli.flags.workload import DOCUMENTS, RESULT, SENT_REQUESTS, load, result


class ApiChoice(StrEnum):
    COMPLETIONS = "completions"
    CHAT = "chat"
    EMBEDDINGS = "embeddings"
    CLASSIFY = "classify"
    RERANK = "rerank"


def flags() -> list[Parameter]:
    """Returns the flags."""
    return [*_target(), *_load(), *_result()]


def _target() -> list[Parameter]:
    server = partial(option, panel="Server")
    return [
        argument("url", str, "Base URL of the server, with or without /v1.", LOCAL_SERVER),
        server("--model", str, "Name of the model on the server; default: the first that the server lists."),
        server(
            "--lora-modules",
            list[str],
            "Name of a LoRA adapter on the server (repeatable): each request uses one of them at random.",
        ),
        server("--api", ApiChoice, "API that the requests are sent to.", ApiChoice.COMPLETIONS),
        server(
            "--api-key",
            str,
            "API key to send; of several, separated by spaces, the first.",
            envvar="COREPIPE_API_KEY",
        ),
        server(
            "--tokenizer",
            str,
            "Tokenizer that counts tokens: a directory, .gguf file or hub id; default: the server "
            "counts them.",
        ),
        server("--extra-body", str, "JSON object of further fields of each request; null removes a field."),
        server(
            "--timeout",
            float,
            "Seconds after which a request without a whole answer has failed.",
            600.0,
            min=0.001,
            max=86_400,
        ),
        server("--wait", float, "Seconds to wait for the server to start.", 0.0, min=0, max=86_400),
    ]


def _load() -> list[Parameter]:
    return [
        workload.users("--concurrency"),
        workload.RATE,
        *workload.GAPS,
        workload.THINK_TIME,
        workload.requests("send", SENT_REQUESTS),
        workload.DURATION,
        *workload.SIZES,
        load(
            "--documents",
            int,
            f"Documents to rank for each query of --api rerank; query and document together have "
            f"--input-len tokens; default: {DOCUMENTS}.",
            min=1,
            max=1024,
        ),
        workload.TURNS,
        *workload.TRACE,
        load(
            "--sweep",
            bool,
            "Measure at rising rates until the server is saturated, for --duration seconds each; "
            "--rate A,B,C chooses the rates.",
        ),
        load(
            "--cancel",
            float,
            "Share of the requests whose connection is closed in the middle of the answer.",
            0.0,
            min=0,
            max=1,
        ),
        load("--warmup", int, "Requests that are sent before the measurement and not counted.", 0, min=0),
        workload.SEED,
        load(
            "--salt",
            str,
            "Text that seeds the words of the prompts; default: random, so that no prefix cache has them.",
        ),
    ]


def _result() -> list[Parameter]:
    return [
        workload.SLO,
        result(
            "--assert",
            list[str],
            "Condition on the result, such as 'p99_ttft_ms<500' (repeatable); exit code 3 if it is not met.",
            name="assertions",
        ),
        result("--compare", Path, "File of an older result, to which the new one is compared."),
        as_json(RESULT),
        result("--output -o", Path, "Write result.json, requests.csv and report.html into this directory."),
    ]
