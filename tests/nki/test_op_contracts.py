"""The values that kernels are compared with, against the Ops' reference and the shipped kernels' own."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from corepipe.errors import UserError
from corepipe.models.registry import architecture
from corepipe.neuron.compile.compiler import compile_for_timing
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS, DType, Function
from corepipe.neuron.ops import Attention, Experts, GatedActivation, RMSNorm, SelectiveScan
from corepipe.nki import installed
from corepipe.nki.ops.comparison import compared
from corepipe.nki.ops.contract import Contract, Source
from corepipe.nki.ops.rows import ExpertsContract, RMSNormContract, SwiGLUContract
from corepipe.nki.ops.sequences import (
    AttentionContract,
    AttentionDecodeContract,
    ScanContract,
    ScanDecodeContract,
)
from tests.reference import arithmetic
from tests.reference.attention import AttentionScores, HeadVectors, attend

EXAMPLES = Path(__file__).parents[2] / "examples" / "nki"
FP32, BF16 = DType.FP32, DType.BF16
PROMPT = AttentionContract(FP32, 4, 2, 16, 0.25, causal=True, window=None)
DECODE = AttentionDecodeContract(FP32, 4, 2, 16, 0.25, causal=True, window=None)
SCAN, SCAN_DECODE = ScanContract(FP32, 4, 2, 8, 16), ScanDecodeContract(FP32, 4, 2, 8, 16)
MIXTURE = ExpertsContract(FP32, 4, 2, 32, 24, "silu", divided=False)


def example(name: str) -> ModuleType:
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    with installed():
        spec.loader.exec_module(module)
    return module


def test_norms_are_those_of_the_reference() -> None:
    contract = RMSNormContract(FP32, 64, 1e-3, parts=1, lnc=1)
    x, gain = contract.arrays((9, 0), Source(0))
    wanted = arithmetic.rms_norm(x, gain, 1e-3, FP32)
    assert contract.twin((x, gain))[0] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("function", [Function.SILU, Function.GELU, Function.GELU_TANH, Function.RELU])
def test_gates_are_those_of_the_reference(function: Function) -> None:
    contract = SwiGLUContract(FP32, 64, function.value, lnc=1)
    gate, up = contract.arrays((9, 0), Source(0))
    wanted = arithmetic.gated(gate, up, function, FP32)
    assert contract.twin((gate, up))[0] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(("causal", "window"), [(True, None), (True, 7), (False, None), (False, 8)])
def test_attention_is_that_of_the_reference(causal: bool, window: int | None) -> None:
    contract = AttentionContract(FP32, 4, 2, 16, 0.25, causal=causal, window=window)
    q, k, v = contract.arrays((24, 9 if causal else 0), Source(0))
    kind = AttentionScores(0.25, window, causal=causal)
    positions = np.arange(len(k) - len(q), len(k), dtype=np.int32)
    wanted = attend(q, HeadVectors(k), HeadVectors(v), positions, kind, FP32)
    assert contract.twin((q, k, v))[0].reshape(wanted.shape) == pytest.approx(wanted, abs=1e-5)


def test_answers_attend_as_the_last_row_of_a_prompt_does() -> None:
    q, k, v = DECODE.arrays((3, 40), Source(0))
    alone = [PROMPT.twin((q[s : s + 1], k[s], v[s]))[0][0] for s in range(3)]
    assert DECODE.twin((q, k, v))[0] == pytest.approx(np.stack(alone), abs=1e-6)


def test_a_scan_in_two_parts_is_the_scan_in_one() -> None:
    x, dt, a, b, c, skip, state = SCAN.arrays((20, 0), Source(0))
    out, last = SCAN.twin((x, dt, a, b, c, skip, state))
    first, between = SCAN.twin((x[:7], dt[:7], a, b[:7], c[:7], skip, state))
    second, after = SCAN.twin((x[7:], dt[7:], a, b[7:], c[7:], skip, between))
    assert np.concatenate((first, second)) == pytest.approx(out, abs=1e-6)
    assert after == pytest.approx(last, abs=1e-6)


def test_answers_scan_as_a_prompt_of_one_row_does() -> None:
    arrays = SCAN_DECODE.arrays((3, 0), Source(0))
    out, state = SCAN_DECODE.twin(arrays)
    for s in range(3):
        x, dt, a, b, c, skip, before = arrays
        row = slice(s, s + 1)
        alone = SCAN.twin((x[row], dt[row], a, b[row], c[row], skip, before[s]))
        assert out[s] == pytest.approx(alone[0][0], abs=1e-6)
        assert state[s] == pytest.approx(alone[1], abs=1e-6)


@pytest.mark.parametrize(
    ("contract", "sizes", "name", "reference", "given"),
    [
        (PROMPT, (24, 8), "attention", "reference", 3),
        (DECODE, (3, 40), "attention", "decode_reference", 3),
        (ScanContract(FP32, 4, 1, 8, 16), (24, 0), "scan", "reference", 5),
        (ScanDecodeContract(FP32, 4, 1, 8, 16), (3, 0), "scan_decode", "reference", 7),
        (MIXTURE, (9, 0), "experts", "reference", 5),
    ],
)
def test_the_shipped_kernels_mean_the_same(
    contract: Contract, sizes: tuple[int, int], name: str, reference: str, given: int
) -> None:
    arrays = contract.arrays(sizes, Source(0))
    own = [array if at < given else np.zeros_like(array) for at, array in enumerate(arrays)]
    wanted = getattr(example(name), reference)(*own[:given])
    results = wanted if isinstance(wanted, tuple) else (wanted,)
    for result, value in zip(results, contract.twin(own), strict=False):
        assert value == pytest.approx(np.asarray(result), abs=1e-4)


@pytest.mark.parametrize("contract", [PROMPT, DECODE, SCAN, SCAN_DECODE, MIXTURE])
def test_arrays_for_times_have_the_shapes_of_those_for_values(contract: Contract) -> None:
    sizes = contract.compared[0]
    plain, drawn = contract.arrays(sizes, Source()), contract.arrays(sizes, Source(1))
    assert [(a.shape, a.dtype) for a in plain] == [(a.shape, a.dtype) for a in drawn]
    assert all(not any(array.strides) for array in plain)  # they take no memory


def first(kind: type, model: str, tensor: int = 1) -> Any:
    graph = architecture(model).graph(FORMATS["bf16"], 1024)
    program = compile_for_timing(graph, Placement(tensor=tensor))[0]
    return next(op for op in program.ops if isinstance(op, kind))


def test_sizes_are_those_of_a_cores_part() -> None:
    bf16 = FORMATS["bf16"]
    found = AttentionContract.of(first(Attention, "llama-3.1-8b", 4), bf16, lnc=1)
    assert (found.heads, found.kv_heads, found.d, found.dtype) == (8, 2, 128, BF16)
    halved = AttentionContract.of(first(Attention, "llama-3.1-8b", 4), bf16, lnc=2)
    assert (halved.heads, halved.kv_heads) == (4, 1)
    assert SwiGLUContract.of(first(GatedActivation, "llama-3.1-8b", 4), bf16, lnc=1).n == 14336 // 4
    assert SwiGLUContract.of(first(GatedActivation, "llama-3.1-8b", 4), bf16, lnc=2).each == 0.5
    norm = RMSNormContract.of(first(RMSNorm, "llama-3.1-8b", 4), bf16, lnc=1)
    assert (norm.n, norm.each, norm.eps) == (4096, 1, 1e-5)
    scan = ScanContract.of(first(SelectiveScan, "mamba2-130m"), bf16, lnc=1)
    assert (scan.heads, scan.groups, scan.d, scan.states) == (24, 1, 64, 128)
    experts = ExpertsContract.of(first(Experts, "mixtral-8x7b", 8), bf16, lnc=1)
    assert (experts.experts, experts.hidden, experts.ffn, experts.least) == (8, 4096, 14336 // 8, 4)


def test_a_norm_of_heads_has_a_row_for_each() -> None:
    graph = architecture("qwen3-0.6b").graph(FORMATS["bf16"], 1024)
    (program,) = compile_for_timing(graph, Placement())
    norms = {RMSNormContract.of(op, FORMATS["bf16"], 1) for op in program.ops if isinstance(op, RMSNorm)}
    assert {(norm.n, norm.each) for norm in norms} == {(1024, 1), (128, 16), (128, 8)}


def test_what_has_no_place_in_the_contract_is_refused() -> None:
    with pytest.raises(UserError, match="layer 0 has sinks"):
        AttentionContract.of(first(Attention, "gpt-oss-20b"), FORMATS["bf16"], lnc=1)
    with pytest.raises(UserError, match="use --lnc 1"):
        AttentionContract.of(first(Attention, "llama-3.1-8b", 8), FORMATS["bf16"], lnc=3)


def test_the_worst_element_is_found_and_no_number_is_worse() -> None:
    wanted = np.array([[1.0, -4.0], [2.0, 3.0]])
    got = wanted.copy()
    got[0, 1] += 0.5
    found = compared([got], [wanted])
    assert (found.index, found.share) == ((0, 1), pytest.approx(0.125))
    assert found.passes(0.125)
    assert not found.passes(0.12)
    got[1, 0] = np.nan
    assert compared([got], [wanted]).index == (1, 0)
    assert not compared([got], [wanted]).passes(1e9)
    with pytest.raises(ValueError, match=r"\[2\], and not \[2, 2\]"):
        compared([got[0]], [wanted])
