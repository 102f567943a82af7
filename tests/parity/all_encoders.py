"""Compares every encoder and head with transformers, live, on small random models: `make parity-all`.

    python -m tests.parity.all_encoders                      # all of them
    python -m tests.parity.all_encoders bert-base            # some
    python -m tests.parity.all_encoders --write              # writes tests/data/encoders anew

Prints a row for each model and executor: the largest difference of a value in fp32 as a share of their range.
Exits with 1 where one is outside its bound.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.parity import live
from tests.parity.checkpoints import BOUND, Checkpoint
from tests.parity.encode import Text
from tests.parity.encoder_cases import BASE, CASES, PAD, SEQUENCE, EncoderCase, serving_config
from tests.parity.encoder_expected import ExpectedValues, difference, expect
from tests.parity.executors import KINDS


@torch.no_grad()
def ask_transformers(case: EncoderCase, folder: Path) -> ExpectedValues:
    """Computes the outputs of the model that transformers saves, filled by the formula and read back."""
    made = getattr(transformers, case.model_class)
    saved = live.saved(made(getattr(transformers, case.config_class)(**case.options)), folder)
    model = made.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    config = serving_config(case, {**saved.config, "architectures": [case.model_class]})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return expect(Checkpoint(config, saved.shapes), answers(case, model))


def answers(case: EncoderCase, model: torch.nn.Module) -> list[np.ndarray]:
    """Returns each text's rows; all texts are in one batch, padded and masked as sentence-transformers does
    it."""
    if pictures := case.pictures():
        pixels = torch.stack([torch.tensor(picture.pixels) for picture in pictures])
        out = model(pixel_values=pixels, interpolate_pos_encoding=case.resized is not None)
        return list(out.logits[:, None].numpy())
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


def check(case: EncoderCase, folder: Path, write: bool) -> bool:
    """Prints a row for each executor."""
    expected = ask_transformers(case, folder)
    if write:
        expected.save(case.name)
    good = True
    for kind in KINDS:
        largest = difference(case, expected, folder, kind)
        mark = "" if largest <= BOUND else "  too far"
        print(f"{case.name:24} {kind:10} {largest:10.1e}{mark}", flush=True)
        good &= largest <= BOUND
    return good


if __name__ == "__main__":
    live.run(__doc__, CASES, check)
