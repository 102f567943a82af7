"""Compares adapters with PEFT, live, on small random models: `make parity-adapters`.

    python -m tests.parity.adapters                 # all of them
    python -m tests.parity.adapters gpt2            # some
    python -m tests.parity.adapters --write         # writes tests/data/adapters anew

The models are those of tests/data/families.  Adapters are written in PEFT's files by tests/peft_adapters.py,
and read by PEFT and by corepipe.  Prints the largest difference of a logit in fp32 as a share of the largest.
Exits with 1 where one is outside its bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from peft import PeftModel

from corepipe.models import registry
from tests.parity import adapter_cases, expected, live


@dataclass(frozen=True)
class Case:
    """An adapter, by the name of its model."""

    name: str


@torch.no_grad()
def ask_peft(name: str, folder: Path) -> np.ndarray:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    adapted = PeftModel.from_pretrained(model, folder / "adapter").eval()
    return adapted(torch.tensor([adapter_cases.tokens(name)])).logits[0].numpy()


def good(case: Case, folder: Path, write: bool) -> bool:
    model = registry.load(expected.load(case.name).write(folder))
    peft = adapter_cases.adapter_for(model, case.name).write(folder / "adapter")
    wanted = ask_peft(case.name, folder)
    got = adapter_cases.adapted_logits(model, peft, adapter_cases.tokens(case.name))
    error = float(np.abs(got - wanted).max() / np.abs(wanted).max())
    print(f"{case.name:12} {error:.1e} of {adapter_cases.BOUND:.0e}")
    if write:
        adapter_cases.DATA.mkdir(exist_ok=True)
        np.save(adapter_cases.DATA / f"{case.name}.npy", wanted[-1])
    return error <= adapter_cases.BOUND


if __name__ == "__main__":
    live.run(__doc__, map(Case, adapter_cases.OPTIONS), good)
