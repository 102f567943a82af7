"""Compares every computed family with transformers, live, on small random models: `make parity-all`.

    python -m tests.parity.all_families                 # all of them
    python -m tests.parity.all_families gpt2 phi        # some
    python -m tests.parity.all_families --write         # writes tests/data/families anew

Each family has a model or several in tests/data/families, which keep heads of 24 and of 80 elements, one
key/value head, feed-forwards that are no multiple of 64, tied and untied heads, biases and none, and windows
that are shorter than the prompt.  For a new one write its `config` into NAME.json, with no `tensors` yet, and
run this with `--write`.

Prints a row for each model and executor: the largest difference of a logit in fp32 as a share of their range,
and how many clear greedy choices are equal; and the same difference of the vector of the last token, which a
decoder gives that is asked to embed.  Exits with 1 where one is outside its bound.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers

from corepipe.models import registry
from tests.parity import expected as answers
from tests.parity import formula, live
from tests.parity.checkpoints import BOUND
from tests.parity.encode import Encoder, Text
from tests.parity.evaluate import Evaluator
from tests.parity.executors import KINDS
from tests.parity.expected import VOCAB, Expected

PROMPT = 300
PROMPTS = {"falcon-sequential": 250}
ATTENTION = {"falcon-sequential": "sdpa"}
"""transformers has products of slopes and positions in bf16, which has no odd numbers from 256 on, and its
eager attention adds them twice, the second time with the mask."""
CLASSES = {"gemma3": "AutoModelForImageTextToText"}


@dataclass(frozen=True)
class Case:
    """A small model, by its name in tests/data/families."""

    name: str


@torch.no_grad()
def ask_transformers(name: str, folder: Path) -> tuple[Expected, np.ndarray]:
    """Computes the outputs of the model that transformers saves, filled by the formula and read back. The
    second is the last token's hidden state [1, width]."""
    (folder / "config.json").write_text(json.dumps(answers.stored(name).config), encoding="utf-8")
    config = transformers.AutoConfig.from_pretrained(folder)
    auto = getattr(transformers, CLASSES.get(name, "AutoModelForCausalLM"))
    saved = live.saved(auto.from_config(config), folder)
    attention = ATTENTION.get(name, "eager")
    model = auto.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32).eval()
    ids = torch.tensor([formula.prompt(name, PROMPTS.get(name, PROMPT), VOCAB)])
    logits = model(input_ids=ids).logits[0].numpy().astype(np.float32)
    # Llama 4's prefix is none of its attributes' names: then a model is its own base.
    base = model.model if model.base_model is model else model.base_model
    vector = base(input_ids=ids).last_hidden_state[0, -1:].numpy()
    return answers.answered(name, saved, logits), vector


def compare(expected: Expected, folder: Path) -> bool:
    """Prints a row for each executor."""
    good = True
    for kind in KINDS:
        evaluator = Evaluator(registry.load(folder), "fp32", len(expected.prompt), kind)
        try:
            verdict = answers.judge(evaluator.logits(expected.prompt), expected)
        finally:
            evaluator.close()
        good &= verdict.good
        mark = "" if verdict.good else "  too far"
        print(
            f"{expected.model_type:14} {expected.name:20} {kind:10} {verdict.difference:10.1e} "
            f"{verdict.equal:4}/{verdict.clear:3}{mark}",
            flush=True,
        )
    return good


def compare_vector(expected: Expected, vector: np.ndarray, folder: Path) -> bool:
    """Prints a row."""
    model = registry.load(folder)
    encoder = Encoder(model, "fp32", model.task("embed"))
    try:
        (found,) = encoder.values([Text(expected.prompt)])
    finally:
        encoder.close()
    difference = float(np.abs(found - vector).max() / np.ptp(vector))
    good = difference <= BOUND
    told = f"{difference:10.1e}{'' if good else '  too far'}"
    print(f"{expected.model_type:14} {expected.name:20} {'embedding':10} {told}", flush=True)
    return good


def check(case: Case, folder: Path, write: bool) -> bool:
    expected, vector = ask_transformers(case.name, folder)
    if write:
        expected.save()
        return True
    return all([compare(expected, folder), compare_vector(expected, vector, folder)])


if __name__ == "__main__":
    live.run(__doc__, map(Case, answers.names()), check)
