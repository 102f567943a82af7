"""The models of the digest by their names: published ones, and the tiny ones of tests/data."""

from __future__ import annotations

import json
from pathlib import Path

from corepipe.models import published
from tests.digest.forms import Json

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "data" / "tiny"


def source(model: str) -> str:
    """Returns the argument of `registry.architecture` for an entry's name: a published name, or a
    directory."""
    return str(ROOT / model) if model.startswith("tests/") else model


def alike(name: str, other: str) -> bool:
    """Returns True if two models have the same config."""
    return config(name) == config(other)


def config(model: str) -> Json:
    """Returns the config.json of a model."""
    file = Path(source(model)) / "config.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else published.config(model)


def family(model: str) -> str:
    """Returns Hugging Face's model_type."""
    return str(config(model)["model_type"])
