"""Compares corepipe with transformers, live: `make parity`.

    python -m tests.parity.compare                # tiny families and SmolLM2-135M-Instruct
    python -m tests.parity.compare --tiny         # the tiny families only, in seconds

For each model and format: how many greedy tokens agree with fp32 transformers (given the same tokens
before), the largest difference of a logit, and the perplexity.  Exits with 1 if fp32 disagrees, a figure
is outside its limit, or the committed goldens are not those that were made now.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from corepipe.models import registry
from corepipe.models.registry import Model
from tests.parity import make_goldens, real
from tests.parity.evaluate import Evaluator
from tests.parity.families import FAMILIES
from tests.parity.make_goldens import Golden

FORMATS = ("fp32", "bf16", "int8", "int8-weights", "int4-weights")
NEAR_TIE = 1e-3
"""An answer whose smallest lead is below this may change with the order of a sum."""
LARGEST_LOGIT_DIFFERENCE = 1e-3
"""The largest difference of fp32 from transformers in fp32."""
LARGEST_PERPLEXITY_CHANGE = {
    "fp32": 0.001,
    "bf16": 0.005,
    "int8": 0.02,
    "int8-weights": 0.01,
    "int4-weights": 0.02,
}
"""The largest change from transformers in fp32, for a file whose weights have four bits already."""
ROUNDED_PROMPTS = 5
"""Prompts in the other formats, whose greedy tokens are printed and not judged."""
HEAD = (
    f"{'model':12} {'executor':10} {'format':13} {'greedy':>11} {'max dlogit':>11} "
    f"{'perplexity':>11} {'change':>8}"
)


def compare(model: Model, golden: Golden, executor: str, fmt: str) -> bool:
    """Prints one row; False if it is outside the stated limits, or is fp32 and a clear
    greedy choice differs."""
    longest = max(len(p) + len(t) for p, t in zip(golden.prompts, golden.tokens, strict=True))
    evaluator = Evaluator(model, fmt, max(longest, real.WINDOW), executor)
    try:
        asked = list(zip(golden.prompts, golden.tokens, golden.leads, strict=True))
        asked = asked if fmt == "fp32" else asked[:ROUNDED_PROMPTS]
        equal = [evaluator.agreement(prompt, tokens) for prompt, tokens, _ in asked]
        logits = evaluator.logits(golden.text)[golden.positions]
        perplexity = evaluator.perplexity(golden.windows) if golden.windows else None
    finally:
        evaluator.close()
    total = sum(len(tokens) for _, tokens, _ in asked)
    largest = float(np.abs(logits - golden.logits).max())
    print(f"{model.name[:12]:12} {executor:10} {fmt:13} {sum(equal):5}/{total:5} {largest:11.5f}", end="")
    close = fmt != "fp32" or largest <= LARGEST_LOGIT_DIFFERENCE
    if perplexity is not None and golden.perplexity is not None:
        change = perplexity / golden.perplexity - 1
        print(f" {perplexity:11.4f} {change:+8.2%}", end="")
        close &= abs(change) <= LARGEST_PERPLEXITY_CHANGE[fmt]
    print("" if close else "  too far", flush=True)
    clear = all(
        n == len(tokens) for n, (_, tokens, lead) in zip(equal, asked, strict=True) if lead > NEAR_TIE
    )
    return close and (fmt != "fp32" or clear)


def unchanged(golden: Golden, file: Path) -> bool:
    """Tells whether the committed golden has the same answers, up to near ties."""
    written = json.loads(file.read_text(encoding="utf-8"))["tokens"]
    differ = [
        a != b and lead > NEAR_TIE for a, b, lead in zip(golden.tokens, written, golden.leads, strict=True)
    ]
    if any(differ):
        print(f"{file}: {sum(differ)} answers are not those made now; run make_goldens.py")
    return not any(differ)


def compare_tiny() -> bool:
    good = True
    for family in FAMILIES:
        golden = make_goldens.tiny_golden(family)
        good &= unchanged(golden, family.path / "golden.json")
        model = registry.load(family.path)
        for fmt in FORMATS:
            good &= compare(model, golden, "reference", fmt)
            good &= compare(model, golden, "native", fmt)
    return good


def compare_smollm2() -> bool:
    path = real.model_path()
    golden = make_goldens.smollm2_golden(path)
    good = unchanged(golden, real.GOLDEN / "golden.json")
    model = registry.load(path)
    print(f"{'':12} {'fp32 transformers':24} {'':23} {golden.perplexity:11.4f}")
    for fmt in FORMATS:
        good &= compare(model, golden, "native", fmt)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="leave the real model out")
    arguments = parser.parse_args()
    print(HEAD)
    good = compare_tiny()
    if not arguments.tiny:
        good &= compare_smollm2()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
