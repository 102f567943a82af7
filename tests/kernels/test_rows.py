"""Row kernels equal the reference executor, on every ISA; what is fused around a Linear equals its parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from corepipe.kernels import _native, packing
from corepipe.neuron.formats import DType
from corepipe.neuron.numerics.arithmetic import quantize_weight
from corepipe.neuron.ops import Function
from tests.kernels.harness import in_turn, one_step, value
from tests.reference import arithmetic

Append = Callable[[_native.Program], None]
WIDTHS = [1, 15, 16, 33, 80, 256, 577]


def program(append: Append, values: list[np.ndarray | int], rounded: bool = False) -> _native.Program:
    """Returns a program that has run, with these values: arrays that it starts with, or widths."""
    rows = max(len(x) for x in values if isinstance(x, np.ndarray))
    widths = [x if isinstance(x, int) else x.shape[1] for x in values]
    made = _native.Program(widths, rows, rounded)
    append(made)
    for i, x in enumerate(values):
        if isinstance(x, np.ndarray):
            value(made, i)[:, : widths[i]] = x
    one_step([made], rows)
    return made


def result(append: Append, values: list[np.ndarray | int], out: int, rounded: bool = False) -> np.ndarray:
    return value(program(append, values, rounded), out).copy()


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("function", Function)
def test_functions_are_the_twins(function: Function) -> None:
    """Over all of their curved range, and close to 0."""
    x = np.linspace(-30, 30, 20 * 997, dtype=np.float32).reshape(20, 997)
    got = result(lambda p: p.activation(function.value, 0, 1), [x, 997], 1)
    expected = arithmetic.apply(function, x)
    looser = {Function.GELU_TANH: 5e-6, Function.CLAMPED_SWISH: 5e-6}
    relative = ({Function.SILU: 2e-6, Function.SIGMOID: 2e-6} | looser).get(function, 1e-6)
    assert np.abs(got - expected).max() <= 3e-6
    far = np.abs(expected) > 1e-3
    np.testing.assert_allclose(got[far], expected[far], rtol=relative)
    small = normal(3, 40) * np.float32(1e-4)
    got = result(lambda p: p.activation(function.value, 0, 1), [small, 40], 1)
    np.testing.assert_allclose(got, arithmetic.apply(function, small), rtol=1e-6)


@pytest.mark.parametrize("function", Function)
def test_functions_far_out(function: Function) -> None:
    x = np.float32([[-1e30, -1e4, -100, -0.0, 0.0, 100, 1e4, 1e30, np.nan]])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = arithmetic.apply(function, x)
    got = result(lambda p: p.activation(function.value, 0, 1), [x, 9], 1)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_are_the_twins(width: int, rounded: bool) -> None:
    x = normal(7, width) * np.float32(3) + np.float32(20)
    gain, bias = normal(width, seed=1), normal(width, seed=2)
    compute = DType.BF16 if rounded else DType.FP32
    for g, b in itertools.product((gain, None), (bias, None)):
        got = result(lambda p, g=g, b=b: p.layer_norm(0, 1, g, b, 1e-3), [x, width], 1, rounded)
        expected = arithmetic.layer_norm(x, g, b, 1e-3, compute)
        np.testing.assert_allclose(got, expected, rtol=2.0**-7 if rounded else 1e-5, atol=2e-5)
    got = result(lambda p: p.rms_norm(0, 1, gain, 1e-3), [x, width], 1, rounded)
    expected = arithmetic.rms_norm(x, gain, 1e-3, compute)
    np.testing.assert_allclose(got, expected, rtol=2.0**-7 if rounded else 1e-5)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_of_heads_are_the_twins(width: int, rounded: bool) -> None:
    """With one gain for all heads, and with a gain per head; each head as if it were alone."""
    x, compute = normal(7, 3 * width) * np.float32(3), DType.BF16 if rounded else DType.FP32
    for groups in (1, 3):
        gain, bias = normal(groups * width, seed=1), normal(groups * width, seed=2)
        got = result(
            lambda p, g=gain, b=bias, n=groups: p.layer_norm(0, 1, g, b, 1e-3, n), [x, 3 * width], 1, rounded
        )
        expected = arithmetic.layer_norm(x, gain, bias, 1e-3, compute, groups)
        np.testing.assert_allclose(got, expected, rtol=2.0**-7 if rounded else 1e-5, atol=2e-5)
        for head in range(3):
            part, own = slice(head * width, (head + 1) * width), slice((head % groups) * width, None)
            g, b = gain[own][:width].copy(), bias[own][:width].copy()
            alone = result(
                lambda p, g=g, b=b: p.layer_norm(0, 1, g, b, 1e-3), [x[:, part].copy(), width], 1, rounded
            )
            np.testing.assert_array_equal(got[:, part], alone)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_scales_and_gates_are_the_twins(width: int, rounded: bool) -> None:
    x, y, compute = normal(7, width), normal(7, width, seed=1), DType.BF16 if rounded else DType.FP32
    got = result(lambda p: p.scale(0, 1 / 3, 1), [x, width], 1, rounded)
    np.testing.assert_array_equal(got, arithmetic.scale(x, 1 / 3, compute))
    x, y = (arithmetic.round_to(np.float32(6) * array, compute) for array in (x, y))  # beyond all bounds
    got = result(lambda p: p.clamp(0, 0.3, 1), [x, width], 1, rounded)
    np.testing.assert_array_equal(got, arithmetic.clamp(arithmetic.round_to(x, compute), 0.3, compute))
    for function in Function:
        got = result(lambda p, f=function: p.glu(0, 1, 2, f.value), [x, y, width], 2, rounded)
        expected = arithmetic.gated(x, y, function, compute)
        np.testing.assert_allclose(got, expected, rtol=2.0**-7 if rounded else 1e-5, atol=1e-6)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("stored", ["fp32", "bf16"])
@pytest.mark.parametrize("offset", [0, 2])
def test_learned_positions_are_the_twins(offset: int, stored: str, rounded: bool) -> None:
    x, compute = normal(9, 41), DType.BF16 if rounded else DType.FP32
    table = arithmetic.round_to(
        normal(9 + offset, 41, seed=1), DType.BF16 if stored == "bf16" else DType.FP32
    )
    kept = (table.view(np.uint32) >> 16).astype(np.uint16) if stored == "bf16" else table
    got = result(lambda p: p.add_embedding(0, 1, kept, offset), [x, 41], 1, rounded)
    rows = arithmetic.round_to(table[offset:], compute)
    np.testing.assert_array_equal(got, arithmetic.add(x, rows, compute))


def test_positions_beyond_the_table_are_refused() -> None:
    table = normal(5, 8)
    with pytest.raises(ValueError, match="position"):
        program(lambda p: p.add_embedding(0, 1, table, 2), [normal(4, 8), 8])
    with pytest.raises(ValueError, match="offset"):
        program(lambda p: p.add_embedding(0, 1, table, 5), [normal(4, 8), 8])


def matrix(kind: packing.Kind, n: int, k: int, seed: int) -> _native.Matrix:
    dense = normal(n, k, seed=seed) / np.float32(k**0.5)
    scale = None
    if kind in ("int8", "int8w"):
        quantized, scale = quantize_weight(dense)
        return _native.Matrix(kind, packing.pack(kind, quantized), scale, n, k)
    return _native.Matrix(kind, packing.pack(kind, dense), scale, n, k)


KINDS = ["fp32", "bf16", "int8", "int8w"]
ROWS = [1, 3, 17, 150]
K, N = 136, 75


@pytest.mark.parametrize(("kind", "rounded", "rows"), in_turn(KINDS, [False, True], ROWS))
def test_what_is_fused_around_a_linear_equals_its_parts(kind: packing.Kind, rounded: bool, rows: int) -> None:
    w, up = matrix(kind, N, K, 3), matrix(kind, N, K, 4)
    bias, gain, shift = normal(N, seed=5), normal(K, seed=6), normal(K, seed=7)
    dtype = DType.BF16 if rounded else DType.FP32
    x, a, b = (arithmetic.round_to(normal(rows, n, seed=n), dtype) for n in (K, N, N + 1))
    b = np.ascontiguousarray(b[:, :N])
    values: list[np.ndarray | int] = [x, a, b, N, N, N, K]

    def check(fused: Append, parts: Append, out: int = 3) -> None:
        np.testing.assert_array_equal(
            result(fused, values, out, rounded), result(parts, values, out, rounded)
        )

    def normed(p: _native.Program) -> None:
        p.layer_norm(0, 6, gain, shift, 1e-5)
        p.linear(6, [(w, bias, 3)])

    check(lambda p: p.linear(0, [(w, bias, 3)], layer_norm=(gain, shift, 1e-5)), normed)

    for function in Function:
        name = function.value

        def then(p: _native.Program, name: str = name) -> None:
            p.linear(0, [(w, bias, 4)])
            p.activation(name, 4, 3)

        check(lambda p, name=name: p.linear(0, [(w, bias, 3)], function=name), then)

        def paired(p: _native.Program, name: str = name) -> None:
            p.linear(0, [(w, bias, 4), (up, None, 5)])
            p.glu(4, 5, 3, name)

        pair = [(w, bias, 3), (up, None, 3)]
        check(lambda p, pair=pair, name=name: p.linear(0, pair, function=name, glu=True), paired)

    def summed(p: _native.Program) -> None:
        p.linear(0, [(w, bias, 3)])
        p.scale(3, 0.3, 4)
        p.add(1, 4, 5)
        p.add(2, 5, 3)

    check(lambda p: p.linear(0, [(w, bias, 3)], factor=0.3, residual=1, outer=2), summed)
    check(
        lambda p: p.linear(0, [(w, bias, 2)], factor=0.3, residual=1, outer=2),
        lambda p: [summed(p), p.add(2, 5, 2)],
        2,
    )

    def scaled(p: _native.Program) -> None:
        p.linear(0, [(w, bias, 3), (up, None, 4)])
        p.scale(3, 0.3, 3)
        p.scale(4, 0.3, 4)

    both = [(w, bias, 3), (up, None, 4)]
    check(lambda p: p.linear(0, both, factor=0.3), scaled, 3)
    check(lambda p: p.linear(0, both, factor=0.3), scaled, 4)


def test_what_a_linear_refuses() -> None:
    x, w = normal(2, K), matrix("fp32", N, K, 1)
    values: list[np.ndarray | int] = [x, N, N, K]
    for message, options in {
        "outer": {"outer": 2},
        "function": {"function": "gelu", "residual": 2},
        "no function": {"function": "softsign"},
        "one norm": {"norm": (normal(K), 1e-5), "layer_norm": (None, None, 1e-5)},
        "as wide as": {"layer_norm": (normal(N), None, 1e-5)},
        "residual must be as wide": {"residual": 3},
    }.items():
        with pytest.raises(ValueError, match=message):
            program(lambda p, options=options: p.linear(0, [(w, None, 1)], **options), values)
