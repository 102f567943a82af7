"""Every family compared with transformers: logits of small random models of odd shapes (tests/parity)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from corepipe.models import registry
from tests.parity import encoder_cases
from tests.parity import expected as answers
from tests.parity.evaluate import Evaluator
from tests.parity.families import FAMILIES, TinyFamily

MODELS = answers.names()
LIMIT = 24 * 1024
"""The most bytes of a family in the repository; a mixture names the tensors of each expert."""


@pytest.mark.parametrize("executor", ["native", "reference"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_tokens_are_those_of_transformers(name: str, executor: str, tmp_path: Path) -> None:
    expected = answers.load(name)
    model = registry.load(expected.write(tmp_path))
    model.check(model.graph(registry.FORMATS["fp32"]))
    evaluator = Evaluator(model, "fp32", len(expected.prompt), executor)
    verdict = answers.judge(evaluator.logits(expected.prompt), expected)
    evaluator.close()
    assert verdict.good, verdict


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_rotary_frequencies_are_those_of_transformers(family: TinyFamily) -> None:
    config = registry.load(family.path).config
    golden = np.load(family.path / "golden.npz")
    spec = config.rope.spec(config.heads.head_dim)
    np.testing.assert_array_max_ulp(np.array(spec.inv_freq, np.float32), golden["inv_freq"], maxulp=1)
    assert spec.attention_factor == pytest.approx(float(golden["attention_factor"]), rel=1e-6)


def test_a_text_among_others_is_that_of_its_own_family(tmp_path: Path) -> None:
    """A multimodal model has its text config in a section, and its tensors behind a prefix."""
    expected = answers.load("llama4_text")
    folder = expected.write(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "llama4", "text_config": config}))
    tensors = load_file(folder / "model.safetensors")
    save_file({f"language_model.{name}": x for name, x in tensors.items()}, folder / "model.safetensors")
    evaluator = Evaluator(registry.load(folder), "fp32", len(expected.prompt), "native")
    verdict = answers.judge(evaluator.logits(expected.prompt), expected)
    evaluator.close()
    assert verdict.good, verdict


def test_every_computed_family_is_compared() -> None:
    """Encoders are compared by tests/test_encoder_families.py, multimodal models' text above."""
    decoders = {answers.load(name).model_type for name in MODELS} | {"llama4"}
    encoders = {case.prefix.lower() for case in encoder_cases.CASES}
    others = set(registry.computed_families()) - decoders
    assert decoders <= set(registry.computed_families())
    assert {family.replace("-", "") for family in others} == encoders


def test_a_family_takes_little_room() -> None:
    sizes: dict[str, int] = {}
    for name in MODELS:
        family = answers.load(name).model_type
        files = answers.DATA.glob(f"{name}.*")
        sizes[family] = sizes.get(family, 0) + sum(file.stat().st_size for file in files)
    assert max(sizes.values()) <= LIMIT
