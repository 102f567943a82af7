"""Serves a model on the Neuron hardware you don't have yet."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corepipe.serving.config import EngineConfig
    from corepipe.serving.llm import LLM, RequestOutput
    from corepipe.serving.params import SamplingParams

__version__ = "0.1.0"

__all__ = ["LLM", "EngineConfig", "RequestOutput", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    """Loads what is asked for, so that importing the package alone stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module("corepipe.serving.config" if name == "EngineConfig" else "corepipe.serving.llm")
    value: object = getattr(module, name)
    return value
