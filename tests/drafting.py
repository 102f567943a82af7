"""Draft models for tests: a smaller random one with the same tokens, whose guesses are mostly wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.servers import TINY


def write_twin(folder: Path, *, vocabulary: int | None = None, **fields: Any) -> Path:
    """TINY's first layer alone, with other numbers; `vocabulary`: so many tokens instead of its own; fields:
    other values in its config."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in TINY.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copyfile(file, folder / file.name)
    config = json.loads((TINY / "config.json").read_text()) | {"num_hidden_layers": 1} | fields
    rng, tensors = np.random.default_rng(5), {}
    for name, tensor in load_file(TINY / "model.safetensors").items():
        if ".layers.1." not in name:
            rows = vocabulary if vocabulary and tensor.shape[0] == config["vocab_size"] else tensor.shape[0]
            tensors[name] = rng.standard_normal((rows, *tensor.shape[1:])).astype(np.float32) * 0.05
    config["vocab_size"] = vocabulary or config["vocab_size"]
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def guesses_of(model: Path | str, most: int = 5, **fields: Any) -> dict[str, Any]:
    """The `--speculative-config` of a draft model."""
    return {"method": "draft_model", "model": str(model), "num_speculative_tokens": most, **fields}
