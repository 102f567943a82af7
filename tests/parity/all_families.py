"""Compares every computed family with transformers, live, on small random models: `make parity-all`.

    python -m tests.parity.all_families                 # all of them
    python -m tests.parity.all_families gpt2 phi        # some
    python -m tests.parity.all_families --write         # writes tests/data/families anew

Prints a row for each model and executor: the largest difference of a logit in fp32 as a share of their range,
and how many clear greedy choices are equal; and the same difference of the vector of the last token, which a
decoder gives that is asked to embed.  Exits with 1 where one is outside its bound.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers

from corepipe.models import registry
from tests.parity import expected as answers
from tests.parity import formula, live
from tests.parity.cases import CASES, VOCAB, Case
from tests.parity.checkpoints import BOUND
from tests.parity.encode import Encoder, Text
from tests.parity.evaluate import Evaluator
from tests.parity.executors import KINDS
from tests.parity.expected import Expected


@torch.no_grad()
def ask_transformers(case: Case, folder: Path) -> tuple[Expected, np.ndarray]:
    """Computes the outputs of the model that transformers saves, filled by the formula and read back. The
    second is the last token's hidden state [1, width]."""
    config = getattr(transformers, case.config_class)(**case.options)
    auto = getattr(transformers, case.model_class)
    saved = live.saved(auto.from_config(config), folder)
    model = auto.from_pretrained(folder, attn_implementation=case.attention, dtype=torch.float32).eval()
    ids = torch.tensor([formula.prompt(case.name, case.prompt, VOCAB)])
    logits = model(input_ids=ids).logits[0].numpy().astype(np.float32)
    # Llama 4's prefix is none of its attributes' names: then a model is its own base.
    base = model.model if model.base_model is model else model.base_model
    vector = base(input_ids=ids).last_hidden_state[0, -1:].numpy()
    return answers.answered(case.name, saved, logits), vector


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
    expected, vector = ask_transformers(case, folder)
    if write:
        expected.save()
        return True
    return all([compare(expected, folder), compare_vector(expected, vector, folder)])


if __name__ == "__main__":
    live.run(__doc__, CASES, check)
