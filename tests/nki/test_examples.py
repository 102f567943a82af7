"""The kernels of examples/nki compute what their references in numpy say, and the faster ones are faster."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from corepipe import nki
from tests.nki import api_page

EXAMPLES = Path(__file__).parents[2] / "examples" / "nki"

SMALL: dict[str, dict[str, int]] = {
    "scan": {"tokens": 256, "heads": 4, "channels": 32, "states": 64},
    "rmsnorm_product": {"rows": 256, "width": 256, "columns": 512},
    "swiglu": {"rows": 150, "width": 2300},
    "rmsnorm": {"rows": 150, "width": 640},
}
FROM_BF16 = {"scan": 5, "rmsnorm_product": 3}
"""The first step that multiplies in bf16."""
BF16 = 0.02
"""Part of the largest value by which products of bf16 may be off."""
EXACT = 1e-4


@cache
def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with nki.installed():
        spec.loader.exec_module(module)
    return module


def check(kernel: Any, inputs: list[Any], expected: Any, bound: float, target: str = "trn2") -> None:
    result = nki.simulate(kernel, *inputs, target=target)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    for output, array in zip(result.outputs, wanted, strict=True):
        assert output.shape == array.shape
        assert np.abs(output - array).max() <= bound * np.abs(array).max()
    assert not result.findings
    alone = nki.simulate(kernel, *inputs, target=target, values=False)
    assert not alone.outputs
    assert alone.latency_us == pytest.approx(result.latency_us, rel=1e-9)


@pytest.mark.parametrize("step", range(1, 6))
@pytest.mark.parametrize("name", ["scan", "rmsnorm_product"])
def test_each_step_of_a_story_computes_the_same(name: str, step: int) -> None:
    module = example(name)
    inputs = module.get_inputs(**SMALL[name])
    bound = BF16 if step >= FROM_BF16[name] else EXACT
    check(getattr(module, f"{name}_{step}"), inputs, module.reference(*inputs), bound)


@pytest.mark.parametrize("name", ["swiglu", "rmsnorm"])
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_kernels_of_rows_take_rows_and_widths_that_fill_no_tile(name: str, target: str) -> None:
    module = example(name)
    inputs = module.get_inputs(**SMALL[name])
    check(getattr(module, name), inputs, module.reference(*inputs), EXACT, target)


@pytest.mark.parametrize(("rows", "context"), [(128, 128), (100, 100), (40, 300), (200, 456)])
def test_attention_of_prompts_is_causal_with_and_without_tokens_before(rows: int, context: int) -> None:
    module = example("attention")
    inputs = module.get_inputs(rows=rows, context=context, width=32)
    check(module.attention_prompt, inputs, module.reference(*inputs), EXACT)


@pytest.mark.parametrize("context", [128, 200, 700])
def test_attention_of_answers_sees_the_whole_cache_of_each_sequence(context: int) -> None:
    module = example("attention")
    inputs = module.get_decode_inputs(context=context, width=32)
    check(module.attention_decode, inputs, module.decode_reference(*inputs), EXACT)


def test_experts_add_up_by_their_weights() -> None:
    module = example("experts")
    inputs = module.get_inputs()
    check(module.experts, inputs, module.reference(*inputs), EXACT)


@pytest.mark.parametrize("sizes", [{}, {"sequences": 3, "heads": 9, "channels": 80, "states": 16}])
def test_a_scan_of_answers_returns_rows_and_states(sizes: dict[str, int]) -> None:
    module = example("scan_decode")
    inputs = module.get_inputs(**sizes)
    check(module.scan_decode, inputs, module.reference(*inputs), EXACT)


@pytest.mark.parametrize("name", ["scan", "rmsnorm_product"])
def test_each_step_of_a_story_is_predicted_to_be_faster(name: str) -> None:
    module = example(name)
    inputs = module.get_inputs()
    times = [
        nki.simulate(getattr(module, f"{name}_{n}"), *inputs, target="trn1", values=False).latency_us
        for n in range(1, 6)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > 2.5 * times[-1]


def test_the_page_lists_the_rules_and_the_names_that_are_there() -> None:
    text = api_page.PAGE.read_text(encoding="utf-8")
    assert text == api_page.page(text), "run python -m tests.nki.api_page"
