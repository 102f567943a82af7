"""The bytes of answers are those that were recorded."""

from __future__ import annotations

import json
from pathlib import Path

from tests.serving.api.golden import answers

RECORDED = Path(__file__).parents[2] / "data" / "answers.jsonl"


def test_answers_are_byte_for_byte_those_that_were_recorded():
    recorded = RECORDED.read_text().splitlines()
    said = list(answers())
    assert len(said) == len(recorded)
    for now, then in zip(said, recorded, strict=True):
        assert json.loads(now) == json.loads(then)
