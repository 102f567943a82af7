"""Compares every encoder and head with transformers, live, on small random models: `make parity-all`.

    python -m tests.parity.all_encoders                      # all of them
    python -m tests.parity.all_encoders bert-base            # some
    python -m tests.parity.all_encoders --write              # writes tests/data/encoders anew

Prints a row for each model and executor: the largest difference of a value in fp32 as a share of their range.
Exits with 1 where one is outside its bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.parity import formula
from tests.parity.all_families import OF_THE_MAKER, stored_shapes
from tests.parity.encode import Text
from tests.parity.encoder_cases import BASE, CASES, PAD, SEQUENCE, EncoderCase, serving_config
from tests.parity.encoder_expected import BOUND, ExpectedValues, difference, expect


@torch.no_grad()
def ask_transformers(case: EncoderCase, folder: Path) -> ExpectedValues:
    """Saves the model as transformers does, fills the file by the formula, and reads it back."""
    made = getattr(transformers, case.model_class)
    made(getattr(transformers, case.config_class)(**case.options)).save_pretrained(folder)
    shapes = stored_shapes(folder / "model.safetensors")
    formula.write_safetensors(folder / "model.safetensors", shapes)
    model = made.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = {key: value for key, value in written.items() if not OF_THE_MAKER.fullmatch(key)}
    config = serving_config(case, {**config, "architectures": [case.model_class]})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return expect(config, shapes, answers(case, model))


def answers(case: EncoderCase, model: torch.nn.Module) -> list[np.ndarray]:
    """Each text's rows; all texts are in one batch, padded and masked as sentence-transformers does it."""
    texts = case.texts()
    ids, mask = (
        _padded(texts, lambda text: text.ids, PAD),
        _padded(texts, lambda text: [1] * len(text.ids), 0),
    )
    types = {"token_type_ids": _padded(texts, lambda text: text.types, 0)} if case.types > 1 else {}
    out = model(input_ids=ids, attention_mask=mask, **types)
    if case.head == SEQUENCE:
        return list(out.logits[:, None].numpy())
    hidden = out.last_hidden_state if case.head == BASE else out.logits
    rows = [row[: len(text.ids)].numpy() for row, text in zip(hidden, texts, strict=True)]
    return [row.mean(0, keepdims=True) for row in rows] if case.head == BASE else rows


def _padded(texts: list[Text], part, value: int) -> torch.Tensor:  # type: ignore[no-untyped-def]
    rows = [torch.tensor(part(text)) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


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
            expected = ask_transformers(case, Path(folder))
            if arguments.write:
                expected.save(case.name)
            for executor in ("reference", "native"):
                largest = difference(case, expected, Path(folder), executor)
                mark = "" if largest <= BOUND else "  too far"
                print(f"{case.name:24} {executor:10} {largest:10.1e}{mark}", flush=True)
                good &= largest <= BOUND
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
