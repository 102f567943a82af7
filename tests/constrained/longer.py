"""A tiny model with room for whole answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def longer(model: Path, context: int) -> Iterator[Path]:
    """Makes a copy of the model with another context length, which rotary positions permit."""
    with TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(model, Path(folder) / model.name))
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": context}))
        yield copy
