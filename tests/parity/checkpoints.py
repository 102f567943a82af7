"""Small random models as the tests keep them: a config and the names and shapes of a checkpoint's tensors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.parity import formula

BOUND = 1e-4
"""Largest difference of a value in fp32 from transformers', as a share of the range of the values."""


@dataclass(frozen=True)
class Checkpoint:
    """A model of the tests. config: the fields of its config.json. shapes: those of each tensor, whose values
    are the formula's."""

    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    def write(self, folder: Path) -> Path:
        """Writes the model's directory, and returns it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        formula.write_safetensors(folder / "model.safetensors", self.shapes)
        return folder

    def told(self) -> str:
        """The checkpoint as JSON, the same for the same model."""
        told = {"config": self.config, "tensors": self.shapes}
        return json.dumps(told, sort_keys=True, separators=(",", ":"))

    @classmethod
    def of(cls, told: str | bytes) -> Checkpoint:
        """Reads the JSON of `told`."""
        read = json.loads(told)
        return Checkpoint(read["config"], {name: tuple(shape) for name, shape in read["tensors"].items()})
