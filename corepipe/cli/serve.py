"""Serve MODEL at an OpenAI-compatible endpoint, on emulated NeuronCores.

Without MODEL it serves SmolLM2-135M-Instruct, which it downloads once (98 MB).
"""

from __future__ import annotations

from inspect import Parameter

from corepipe.cli.flags.options import option
from corepipe.engine.flag import SERVER
from corepipe.imports import uncollected


def flags() -> list[Parameter]:
    """Returns the flags."""
    with uncollected():  # heavy: the help of all commands does without
        from corepipe.cli.flags.fields import served  # noqa: PLC0415
        from corepipe.engine.config import EngineConfig  # noqa: PLC0415
        from corepipe.serving.config import ServerConfig  # noqa: PLC0415
    return [
        *served(ServerConfig),
        *served(EngineConfig),
        option(
            "--also",
            list[str],
            "A further model with options of its own, such as NAME=PATH,dtype=fp32,threads=2 (repeatable).",
            panel=SERVER,
        ),
    ]
