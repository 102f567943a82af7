"""Download a model into the cache and print where it is."""

from __future__ import annotations

from inspect import Parameter

from corepipe.cli.flags.options import argument, as_json, option
from corepipe.models import hub


def flags() -> list[Parameter]:
    """Returns the flags."""
    return [
        argument(
            "model",
            str,
            "Model to download: a hub id such as org/name, all-minilm-l6-v2 or gemma-3-270m.",
            hub.DEFAULT_MODEL,
        ),
        option("--accept-license", bool, "Accept the license of a model that asks for it."),
        as_json(),
    ]
