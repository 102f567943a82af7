"""Families of models: a file each, which reads a configuration and builds a Graph.

A family has `configure`, and `build` or, for an encoder, `trunk` and `base`; `weights` where its checkpoints
keep weights in another way than the graph (see `weight_map`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import iter_modules
from types import MappingProxyType

SHARED = ("blocks", "classic", "encoder", "heads", "images", "layers", "moe", "windows")
"""The modules here that families share."""

ALSO = {
    "camembert": "roberta",
    "deepseek_v2": "deepseek_v3",
    "gemma3_text": "gemma3",
    "llama4_text": "llama4",
    "mt5": "t5",
    "xlm-roberta": "roberta",
}
"""The model types of families that have another one's module."""

_OWN = {module.name: module.name for module in iter_modules(__path__) if module.name not in SHARED}
FAMILIES: Mapping[str, str] = MappingProxyType(dict(sorted((_OWN | ALSO).items())))
"""The module that describes each Hugging Face model_type, which is the module's name as a rule."""
