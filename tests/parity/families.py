"""Tiny random checkpoints, one a family: what make_goldens.py writes and compare.py reads back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
TINY = DATA / "tiny"
VOCAB = 320


@dataclass(frozen=True)
class TinyFamily:
    """A directory whose config.json says what the checkpoint is; `shards` are the files of its tensors."""

    name: str
    shards: int = 1

    @property
    def path(self) -> Path:
        return TINY / self.name


FAMILIES = (
    *map(TinyFamily, ("llama2", "llama3", "smollm2", "mistral", "qwen2", "qwen3")),
    TinyFamily("tinyllama", shards=2),
)
