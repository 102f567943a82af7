"""Flags that several commands have and that are no field of a configuration."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer


class Emit(StrEnum):
    HELM = "helm"
    VLLM_NEURON = "vllm-neuron"


LOCAL_SERVER = "http://127.0.0.1:8000"
"""URL of a server that was started without flags."""


def option(*names: str, help: str, panel: str, **more: Any) -> Any:  # noqa: A002
    """Returns typer's option under a heading of the help."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


Model = Annotated[
    str, typer.Argument(help="A directory, a config.json, a .gguf file, or a name such as llama-3.1-8b.")
]
ServerUrl = Annotated[str, typer.Argument(help="URL of a running server.")]
ApiKey = Annotated[
    str | None, typer.Option("--api-key", envvar="COREPIPE_API_KEY", help="API key of the server.")
]
