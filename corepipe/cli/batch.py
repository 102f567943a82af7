"""Answer the requests in a file, without a server; a run that was interrupted goes on where it was.

A line is a request as OpenAI's batches have it: custom_id, method, url and body.
"""

from __future__ import annotations

from inspect import Parameter
from pathlib import Path

from corepipe.cli.flags.options import REQUIRED, as_json, option

SERVER_FIELDS = (
    "served_model_names",
    "chat_template",
    "trust_request_chat_template",
    "allow_special_tokens_in_text",
    "strict",
    "tool_call_parser",
    "reasoning_parser",
    "verify",
)
"""Settings of a server that decide how a line is answered."""


def flags() -> list[Parameter]:
    """Returns the flags."""
    from corepipe.cli.flags.fields import flag, served  # noqa: PLC0415 -- heavy
    from corepipe.engine.config import EngineConfig  # noqa: PLC0415
    from corepipe.serving.config import ServerConfig  # noqa: PLC0415

    return [
        option("--input -i", Path, "File with a request a line (JSONL).", REQUIRED, dir_okay=False),
        option("--output -o", Path, "File to which the answers are appended, a line each.", REQUIRED),
        option("--model", str, "Path or name of the model; default: SmolLM2-135M-Instruct."),
        *(one for one in served(EngineConfig) if one.name != "model"),
        *(flag(ServerConfig, name) for name in SERVER_FIELDS),
        as_json(),
    ]
