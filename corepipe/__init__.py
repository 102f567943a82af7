"""Serves a model on the Neuron hardware you don't have yet."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
"""As typing's, which takes a while to import: a command could not be interrupted properly meanwhile."""

if TYPE_CHECKING:
    from corepipe.serving.config import EngineConfig
    from corepipe.serving.constraints import StructuredOutputsParams
    from corepipe.serving.llm import LLM
    from corepipe.serving.llm_answers import RequestOutput
    from corepipe.serving.params import SamplingParams

__version__ = "0.1.0"

__all__ = ["LLM", "EngineConfig", "RequestOutput", "SamplingParams", "StructuredOutputsParams", "__version__"]


def __getattr__(name: str) -> object:
    """Loads what is asked for, so that importing the package alone stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = {
        "EngineConfig": "config",
        "RequestOutput": "llm_answers",
        "StructuredOutputsParams": "constraints",
    }
    value: object = getattr(import_module(f"corepipe.serving.{homes.get(name, 'llm')}"), name)
    return value
