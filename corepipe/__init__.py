"""Serves a model on the Neuron hardware you don't have yet."""

from __future__ import annotations

from importlib import import_module

from corepipe.version import __version__

TYPE_CHECKING = False
"""The constant of `typing`, whose import takes a while in which a command could not be interrupted well."""

if TYPE_CHECKING:
    from corepipe.engine.config import EngineConfig
    from corepipe.engine.params import SamplingParams
    from corepipe.library.answers import RequestOutput
    from corepipe.library.llm import LLM
    from corepipe.structured.constraints import StructuredOutputsParams

__all__ = ["LLM", "EngineConfig", "RequestOutput", "SamplingParams", "StructuredOutputsParams", "__version__"]

HOMES = {
    "EngineConfig": "engine.config",
    "LLM": "library.llm",
    "RequestOutput": "library.answers",
    "SamplingParams": "engine.params",
    "StructuredOutputsParams": "structured.constraints",
}
"""The modules of the public names, which are loaded at the first use."""


def __getattr__(name: str) -> object:
    """Loads a name at its first use, so that importing the package alone stays cheap."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"corepipe.{HOMES[name]}"), name)
    return value
