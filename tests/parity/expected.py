"""Small models of every family and transformers' outputs: kept in tests/data/families, at most 20 kB each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.parity import formula
from tests.parity.checkpoints import BOUND, Checkpoint

DATA = Path(__file__).resolve().parents[1] / "data" / "families"
VOCAB = 131
CLEAR = 0.9
"""At least so many greedy choices have a lead that exceeds the bound."""
KEPT = (40, 128, -1)
"""Positions whose logits are kept: the first after a window, the first of the second chunk, the last."""


@dataclass(frozen=True)
class Expected(Checkpoint):
    """A model and transformers' outputs for its prompt: the config, the shapes of a saved checkpoint's
    tensors, the logits at some positions (all of them, or KEPT), and at each position the greedy choice with
    its lead."""

    name: str
    positions: tuple[int, ...]
    logits: np.ndarray
    spread: float
    choices: np.ndarray
    leads: np.ndarray

    @property
    def prompt(self) -> list[int]:
        return formula.prompt(self.name, len(self.choices), VOCAB)

    @property
    def model_type(self) -> str:
        return str(self.config["model_type"])

    def save(self) -> None:
        DATA.mkdir(parents=True, exist_ok=True)
        (DATA / f"{self.name}.json").write_text(self.told() + "\n", encoding="utf-8")
        np.savez_compressed(
            DATA / f"{self.name}.npz",
            logits=self.logits[list(KEPT)],
            spread=np.float32(self.spread),
            choices=self.choices.astype(np.uint8),
            leads=self.leads.astype(np.float16),
        )


def answered(name: str, model: Checkpoint, logits: np.ndarray) -> Expected:
    """Makes the expected outputs from all logits [len(prompt), VOCAB]."""
    best = np.sort(logits, axis=1)[:, -2:]
    spread = float(logits.max() - logits.min())
    leads, choices = best[:, 1] - best[:, 0], logits.argmax(1)
    every = tuple(range(len(logits)))
    return Expected(model.config, model.shapes, name, every, logits, spread, choices, leads)


def stored(name: str) -> Checkpoint:
    return Checkpoint.of((DATA / f"{name}.json").read_text(encoding="utf-8"))


def load(name: str) -> Expected:
    model = stored(name)
    with np.load(DATA / f"{name}.npz") as kept:
        return Expected(
            model.config,
            model.shapes,
            name,
            KEPT,
            kept["logits"],
            float(kept["spread"]),
            kept["choices"].astype(int),
            kept["leads"].astype(np.float32),
        )


def names() -> list[str]:
    return sorted(path.stem for path in DATA.glob("*.json"))


@dataclass(frozen=True)
class Verdict:
    """The largest difference of a logit, as a share of their range; how many choices are clear, and how many
    of those are equal."""

    difference: float
    clear: int
    equal: int
    asked: int

    @property
    def good(self) -> bool:
        return self.difference <= BOUND and self.clear >= CLEAR * self.asked and self.equal == self.clear


def judge(logits: np.ndarray, expected: Expected) -> Verdict:
    """Judges all logits [len(prompt), VOCAB]."""
    difference = float(np.abs(logits[list(expected.positions)] - expected.logits).max() / expected.spread)
    clear = expected.leads > 2 * BOUND * expected.spread
    equal = (logits.argmax(1) == expected.choices) & clear
    return Verdict(difference, int(clear.sum()), int(equal.sum()), len(clear))
