"""Compares every computed family with transformers, live, on small random models: `make parity-all`.

    python -m tests.parity.all_families                 # all of them
    python -m tests.parity.all_families gpt2 phi        # some
    python -m tests.parity.all_families --write         # writes tests/data/families anew

Prints a row for each model and executor: the largest difference of a logit in fp32 as a share of their range,
and how many clear greedy choices are equal; and the same difference of the vector of the last token, which a
decoder gives that is asked to embed.  Exits with 1 where one is outside its bound.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from corepipe.models import registry
from tests.parity import expected as answers
from tests.parity import formula
from tests.parity.cases import CASES, VOCAB, Case
from tests.parity.encode import Encoder, Text
from tests.parity.evaluate import Evaluator
from tests.parity.expected import Expected

OF_THE_MAKER = re.compile(
    "architectures|dtype|transformers_version|use_cache|init.*|.*dropout|.*_pdrop|layerdrop|summary_.*"
)
"""Keys of a saved config that say who wrote it and how it is trained, not what it computes."""


@torch.no_grad()
def ask_transformers(case: Case, folder: Path) -> tuple[Expected, np.ndarray]:
    """Saves the model as transformers does, fills the file by the formula, and reads it back.

    The second is the last token's hidden state [1, width].
    """
    config = getattr(transformers, case.config_class)(**case.options)
    auto = getattr(transformers, case.model_class)
    auto.from_config(config).save_pretrained(folder)
    shapes = stored_shapes(folder / "model.safetensors")
    formula.write_safetensors(folder / "model.safetensors", shapes)
    model = auto.from_pretrained(folder, attn_implementation=case.attention, dtype=torch.float32).eval()
    ids = torch.tensor([formula.prompt(case.name, case.prompt, VOCAB)])
    logits = model(input_ids=ids).logits[0].numpy().astype(np.float32)
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kept = {key: value for key, value in written.items() if not OF_THE_MAKER.fullmatch(key)}
    vector = model.base_model(input_ids=ids).last_hidden_state[0, -1:].numpy()
    return answers.answered(case.name, kept, shapes, logits), vector


def stored_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    raw = file.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return {name: tuple(entry["shape"]) for name, entry in sorted(header.items()) if name != "__metadata__"}


def compare(expected: Expected, folder: Path) -> bool:
    """Prints a row for each executor."""
    good = True
    for executor in ("reference", "native"):
        evaluator = getattr(Evaluator, executor)(registry.load(folder), "fp32", len(expected.prompt))
        try:
            verdict = answers.judge(evaluator.logits(expected.prompt), expected)
        finally:
            evaluator.close()
        good &= verdict.good
        mark = "" if verdict.good else "  too far"
        print(
            f"{expected.model_type:14} {expected.name:20} {executor:10} {verdict.difference:10.1e} "
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
    good = difference <= answers.BOUND
    told = f"{difference:10.1e}{'' if good else '  too far'}"
    print(f"{expected.model_type:14} {expected.name:20} {'embedding':10} {told}", flush=True)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="some of the models")
    parser.add_argument("--write", action="store_true", help="keep what transformers answers")
    arguments = parser.parse_args()
    good = True
    for case in (case for case in CASES if not arguments.names or case.name in arguments.names):
        with tempfile.TemporaryDirectory() as folder:
            expected, vector = ask_transformers(case, Path(folder))
            if arguments.write:
                expected.save()
            else:
                good &= compare(expected, Path(folder))
                good &= compare_vector(expected, vector, Path(folder))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
