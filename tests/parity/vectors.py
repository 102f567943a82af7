"""The vectors of all-MiniLM-L6-v2, and how near they are to those of sentence-transformers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corepipe.models.registry import Model
from tests.parity.encode import Encoder, Text
from tests.parity.families import DATA

NAME = "all-minilm-l6-v2"
STORED = DATA / "all-minilm-l6-v2.npz"
KEPT = 11
"""One text in so many has its vector stored."""
PAIRS = 10_000


@dataclass(frozen=True)
class Bounds:
    """Least median and minimum of the cosines, and least rank correlation."""

    median: float
    minimum: float
    ranks: float


BOUNDS = {"fp32": Bounds(0.99999, 0.99999, 0.999), "int8": Bounds(0.998, 0.99, 0.999)}


def embed(model: Model, fmt: str, texts: list[str]) -> np.ndarray:
    """Returns the vectors [texts, dimensions] of texts, cut as the model's directory specifies."""
    task, tokenizer = model.task(), model.tokenizer()
    encoded = [
        Text(tokenizer.cut(tokenizer.encode(text), task.max_tokens, "right", framed=True)) for text in texts
    ]
    encoder = Encoder(model, fmt, task)
    try:
        return np.concatenate(encoder.values(encoded))
    finally:
        encoder.close()


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the cosines of rows with rows, in fp64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Returns Spearman's correlation of the similarities of the same random pairs in both."""
    pairs = np.random.default_rng(16).integers(0, len(a), (PAIRS, 2))
    one, other = (_ranks(cosines(x[pairs[:, 0]], x[pairs[:, 1]])) for x in (a, b))
    return float(np.corrcoef(one, other)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    ranks = np.empty(len(values))
    ranks[values.argsort()] = np.arange(len(values))
    return ranks


def judge(fmt: str, found: np.ndarray, wanted: np.ndarray) -> bool:
    """Prints a row."""
    near, ranks, bounds = cosines(found, wanted), rank_correlation(found, wanted), BOUNDS[fmt]
    good = np.median(near) >= bounds.median and near.min() >= bounds.minimum and ranks >= bounds.ranks
    told = f"median {np.median(near):.7f} minimum {near.min():.7f} ranks {ranks:.6f}"
    print(f"{fmt:5} {len(found):5} {told}{'' if good else '  too far'}", flush=True)
    return bool(good)
