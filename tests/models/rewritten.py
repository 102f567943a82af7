"""Models of the tests, written with other projections or another config."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from corepipe.models import registry
from tests.parity.families import TINY


def change_config(folder: Path, **changes: object) -> None:
    """Changes keys of a model's config, or (None) removes them."""
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def with_projections(
    folder: Path, quantization: object, stored: Callable[[str, np.ndarray], dict[str, np.ndarray]]
) -> Path:
    """Writes the tiny llama2 with the tensors that `stored` makes of each projection."""
    shutil.copytree(TINY / "llama2", folder)
    original = registry.load(TINY / "llama2").checkpoint
    tensors: dict[str, np.ndarray] = {}
    for name in original.names():
        values = original.read(name)
        tensors |= stored(name, values) if "proj" in name else {name: values}
    save_file(tensors, folder / "model.safetensors")
    change_config(folder, quantization_config=quantization)
    return folder
