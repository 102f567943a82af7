"""The outputs of transformers for the encoders of `encoder_cases`: kept in tests/data/encoders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from corepipe.models.registry import load
from tests.parity.checkpoints import Checkpoint
from tests.parity.encode import Encoder
from tests.parity.encoder_cases import BASE, MASKED, EncoderCase

DATA = Path(__file__).resolve().parents[1] / "data" / "encoders"
KEPT = (0, 64, -1)
"""Rows of the last text that are kept where each token has values."""


@dataclass(frozen=True)
class ExpectedValues(Checkpoint):
    """A model, as its config and the shapes of a saved checkpoint's tensors, and its outputs for the case's
    texts: a row a text, or some rows of the last text."""

    values: np.ndarray
    spread: float

    def save(self, name: str) -> None:
        DATA.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            DATA / f"{name}.npz",
            told=np.frombuffer(self.told().encode(), np.uint8),
            values=self.values,
            spread=np.float32(self.spread),
        )


def expect(model: Checkpoint, rows: list[np.ndarray]) -> ExpectedValues:
    """Makes the expected values from each text's rows: one, or one a token."""
    spread = float(max(row.max() for row in rows) - min(row.min() for row in rows))
    return ExpectedValues(model.config, model.shapes, kept(rows), spread)


def kept(rows: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(rows) if all(len(row) == 1 for row in rows) else rows[-1][list(KEPT)]


def load_expected(name: str) -> ExpectedValues:
    with np.load(DATA / f"{name}.npz") as stored:
        model = Checkpoint.of(stored["told"].tobytes())
        return ExpectedValues(model.config, model.shapes, stored["values"], float(stored["spread"]))


def difference(case: EncoderCase, expected: ExpectedValues, folder: Path, executor: str) -> float:
    """The largest difference of a value in fp32, as a share of their range."""
    model = load(folder)
    asked = {BASE: "embed", MASKED: None}.get(case.head, "classify")
    encoder = Encoder(model, "fp32", None if asked is None else model.task(asked), executor)
    try:
        found = kept(encoder.values(case.inputs()))
    finally:
        encoder.close()
    return float(np.abs(found - expected.values).max() / expected.spread)
