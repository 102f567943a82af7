"""The language of the legacy dialect: what functions compute, and which instructions they record."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import corepipe.nki as nki_simulator
from corepipe.nki.core.errors import KernelError
from corepipe.nki.core.instructions import Instruction
from corepipe.nki.run.calls import Call, run

with nki_simulator.installed():
    from neuronxcc.nki import isa as nisa
    from neuronxcc.nki import language as nl

RANDOM = np.random.default_rng(7)
TILE = RANDOM.standard_normal((8, 24)).astype(np.float32)
OTHER = RANDOM.standard_normal((8, 24)).astype(np.float32)
COLUMN = RANDOM.standard_normal((8, 1)).astype(np.float32)
ROW = RANDOM.standard_normal((1, 24)).astype(np.float32)


def outcome(body, *arrays, dtype=np.float32, target="v2"):
    """Runs a kernel that loads arrays, computes `body` of the tiles and stores it; returns the result and the
    names of the instructions between."""

    def kernel(*given):
        result = body(*(nl.load(x) for x in given))
        out = nl.ndarray(result.shape, dtype=dtype, buffer=nl.shared_hbm)
        nl.store(out, result)
        return out

    found = run(Call(kernel, arrays, {}), target, values=True)
    ops = [e.op for e in found.recorder.stream if isinstance(e, Instruction)]
    return found.outputs[0], [op for op in ops if op != "dma_copy"]


@pytest.mark.parametrize(
    ("body", "arrays", "want", "ops"),
    [
        (lambda x, y: x + y, (TILE, OTHER), TILE + OTHER, ["tensor_tensor"]),
        (lambda x, y: x - y, (TILE, COLUMN), TILE - COLUMN, ["tensor_scalar"]),
        (lambda x, y: x - y, (COLUMN, TILE), COLUMN - TILE, ["tensor_scalar"]),
        (lambda x: 2 - x, (TILE,), 2 - TILE, ["tensor_scalar"]),
        (lambda x: x / 4, (TILE,), TILE / 4, ["tensor_scalar"]),
        (lambda x: -x, (TILE,), -TILE, ["tensor_scalar"]),
        (nl.exp, (TILE,), np.exp(TILE), ["activation"]),
        (nl.reciprocal, (TILE,), 1 / TILE, ["reciprocal"]),
        (nl.copy, (TILE,), TILE, ["tensor_copy"]),
        (lambda x, y: x * y, (TILE, ROW), TILE * ROW, ["memset", "nc_matmul", "tensor_tensor"]),
        (lambda x: nl.sum(x, axis=1), (TILE,), TILE.sum(axis=1, keepdims=True), ["tensor_reduce"]),
        (lambda x: nl.max(x, axis=[1]), (TILE,), TILE.max(axis=1, keepdims=True), ["tensor_reduce"]),
        (lambda x: nl.mean(x, axis=1), (TILE,), TILE.mean(axis=1, keepdims=True), None),
        (lambda x: nl.var(x, axis=1), (TILE,), TILE.var(axis=1, keepdims=True), None),
        (lambda x: nl.where(x > 0, x, 0), (TILE,), np.maximum(TILE, 0), None),
        (nl.transpose, (TILE,), TILE.T, ["nc_transpose", "tensor_copy"]),
        (lambda x: nl.softmax(x, axis=1), (TILE,), None, None),
        (lambda x: x.broadcast_to((8, 24)), (COLUMN,), np.broadcast_to(COLUMN, (8, 24)), []),
    ],
)
def test_a_function_computes_what_numpy_does_by_the_instruction_for_it(body, arrays, want, ops):
    found, recorded = outcome(body, *arrays)
    if want is None:
        powers = np.exp(TILE - TILE.max(axis=1, keepdims=True))
        want = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, want, rtol=2e-6, atol=1e-6)
    if ops is not None:
        assert recorded == ops


@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_transposes_what_is_not_given_transposed(transposed):
    x, y = (
        RANDOM.standard_normal((16, 8)).astype(np.float32),
        RANDOM.standard_normal((8, 24)).astype(np.float32),
    )
    left = np.ascontiguousarray(x.T) if transposed else x
    found, ops = outcome(lambda a, b: nl.matmul(a, b, transpose_x=transposed), left, y)
    np.testing.assert_allclose(found, x @ y, rtol=1e-5, atol=1e-5)
    # The product is copied from PSUM before it is stored.
    turn = [] if transposed else ["nc_transpose", "tensor_copy"]
    assert ops == [*turn, "nc_matmul", "tensor_copy"]


def test_results_have_the_type_of_the_wider_operand():
    low = TILE.astype(ml_dtypes.bfloat16)
    types = {}

    def kernel(x, y, z):
        a, b, c = nl.load(x), nl.load(y), nl.load(z)
        types["bf16"] = (a + a).dtype
        types["bf16 and number"] = (a * 0.5).dtype
        types["bf16 and fp16"] = (a + b).dtype
        types["bf16 and fp32"] = (a + c).dtype
        types["comparison"] = (a < c).dtype
        types["load"] = nl.load(z, dtype=nl.bfloat16).dtype

    run(Call(kernel, (low, TILE.astype(np.float16), TILE), {}), "v2", values=False)
    assert {k: str(v) for k, v in types.items()} == {
        "bf16": "bfloat16",
        "bf16 and number": "bfloat16",
        "bf16 and fp16": "float32",
        "bf16 and fp32": "float32",
        "comparison": "bool",
        "load": "bfloat16",
    }


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3", "float8_e5m2", "bfloat16", "float16", "int8", "uint8", "int32"]
)
def test_tensors_of_every_type_are_cast(dtype):
    kind = getattr(nl, dtype)
    found, _ = outcome(lambda x: nl.copy(x, dtype=kind)[:, 0:16], np.rint(TILE), dtype=kind)
    want = np.rint(TILE)[:, :16]
    np.testing.assert_array_equal(found.astype(np.float32), np.maximum(want, 0) if dtype == "uint8" else want)


def test_the_bytes_of_a_tensor_are_read_in_another_type():
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x.view(nl.float8_e5m2), dtype=nl.float32))
        return out

    values = np.arange(-8, 8, dtype=np.float32).reshape(4, 4).astype(ml_dtypes.float8_e5m2)
    np.testing.assert_array_equal(traced(kernel, values.view(np.uint8))[0][0], values.astype(np.float32))


def traced(body, *arrays):
    """Returns the outputs of a kernel, and its instructions."""
    found = run(Call(body, arrays, {}), "v2", values=True)
    return found.outputs, [e for e in found.recorder.stream if isinstance(e, Instruction)]


def test_an_assigned_result_is_written_to_its_place():
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tiles = nl.ndarray((2, nl.par_dim(8), 24), dtype=x.dtype, buffer=nl.sbuf, name="tiles")
        tiles[0] = nl.load(x)
        tiles[1, :, 0:24] = nl.exp(tiles[0])
        nl.store(out, tiles[1])
        return out

    outputs, instructions = traced(kernel, TILE)
    np.testing.assert_allclose(outputs[0], np.exp(TILE), rtol=1e-6)
    assert [e.op for e in instructions] == ["dma_copy", "activation", "dma_copy"]
    assert [e.writes[0].buffer.name for e in instructions[:2]] == ["tiles", "tiles"]
    assert instructions[1].writes[0].box == ((1, 2), (0, 8), (0, 24))


def test_a_result_that_was_used_before_it_is_assigned_is_copied():
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((8, 24), dtype=x.dtype, buffer=nl.sbuf)
        powers = nl.exp(nl.load(x))
        twice = powers + powers
        tile[...] = powers
        nl.store(out, tile + twice)
        return out

    outputs, instructions = traced(kernel, TILE)
    np.testing.assert_allclose(outputs[0], 3 * np.exp(TILE), rtol=1e-6)
    assert [e.op for e in instructions].count("tensor_copy") == 1


@pytest.mark.parametrize("zeros", [True, False])
def test_products_accumulate_in_psum(zeros):
    x = RANDOM.standard_normal((4, 16, 8)).astype(np.float32)
    y = RANDOM.standard_normal((4, 16, 24)).astype(np.float32)

    def kernel(x, y):
        out = nl.ndarray((8, 24), dtype=nl.float32, buffer=nl.shared_hbm)
        make = nl.zeros if zeros else nl.ndarray  # the first product overwrites what nothing wrote
        total = make((8, 24), dtype=nl.float32, buffer=nl.psum)
        for k in nl.affine_range(4):
            total[...] += nisa.nc_matmul(nl.load(x[k]), nl.load(y[k]))
        nl.store(out, total)
        return out

    outputs, instructions = traced(kernel, x, y)
    np.testing.assert_allclose(outputs[0], np.einsum("kpm,kpn->mn", x, y), rtol=1e-4, atol=1e-4)
    assert [e.op for e in instructions if e.op != "dma_copy"] == ["nc_matmul"] * 4 + ["tensor_copy"]


def test_a_sum_in_sbuf_adds_in_place():
    def kernel(x):
        out = nl.ndarray(x.shape[1:], dtype=x.dtype, buffer=nl.shared_hbm)
        total = nl.zeros((8, 24), dtype=x.dtype, buffer=nl.sbuf, name="total")
        for i in nl.affine_range(3):
            total += nl.load(x[i])
        nl.store(out, total)
        return out

    x = RANDOM.standard_normal((3, 8, 24)).astype(np.float32)
    outputs, instructions = traced(kernel, x)
    np.testing.assert_allclose(outputs[0], x.sum(axis=0), rtol=1e-5, atol=1e-6)
    sums = [e for e in instructions if e.op == "tensor_tensor"]
    assert [e.writes[0].buffer.name for e in sums] == ["total"] * 3


@pytest.mark.parametrize("assigned", [True, False])
def test_a_reduction_over_loops_starts_anew_where_the_loops_do(assigned):
    x = RANDOM.standard_normal((2, 3, 8, 24)).astype(np.float32)

    def kernel(x):
        out = nl.ndarray((2, 8, 24), dtype=x.dtype, buffer=nl.shared_hbm)
        held = nl.ndarray((2, nl.par_dim(8), 24), dtype=x.dtype, buffer=nl.sbuf)
        for i in nl.affine_range(2):
            for j in nl.affine_range(3):
                best = nl.loop_reduce(nl.load(x[i, j]), op=np.max, loop_indices=[j])
                if assigned:
                    held[i] = best
            nl.store(out[i], held[i] if assigned else best)
        return out

    outputs, _ = traced(kernel, x)
    np.testing.assert_array_equal(outputs[0], x.max(axis=1))


def test_a_masked_result_leaves_the_rest_of_its_place():
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        i_p, i_f = nl.mgrid[0:8, 0:24]
        tile = nl.zeros((8, 24), dtype=x.dtype, buffer=nl.sbuf)
        tile[i_p, i_f] = nl.exp(nl.load(x), mask=(i_p < 5) & (i_f >= 3))
        nl.store(out, tile)
        return out

    want = np.zeros_like(TILE)
    want[:5, 3:] = np.exp(TILE[:5, 3:])
    np.testing.assert_allclose(traced(kernel, TILE)[0][0], want, rtol=1e-6)


def test_rows_are_loaded_and_stored_by_indices():
    rows = np.array([6, 0, 3, 5], np.int32)

    def kernel(x, rows):
        out = nl.ndarray((8, 24), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.zeros((8, 24), x.dtype))
        at = nl.load(rows.reshape((4, 1)))
        i_f = nl.arange(24)[None, :]
        nl.store(out[at, i_f], nl.load(x[at, i_f]))
        return out

    want = np.zeros_like(TILE)
    want[rows] = TILE[rows]
    np.testing.assert_array_equal(traced(kernel, TILE, rows)[0][0], want)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda x: nl.load(x[0:9, :]), "index 8 on axis 0"),
        (lambda x: nl.load(x)[0, 0, 0], "3 indices"),
        (lambda x: nl.add(1, 2), "takes a tile"),
        (lambda x: nl.exp(3), "is no tile"),
        (lambda x: nl.load(x).reshape((5, 5)), "reshaped"),
        (lambda x: nl.add(nl.load(x), nl.load(x[:, 0:5])), "shape"),
        (lambda x: nl.fast_inverse(x), "nl.fast_inverse is not supported"),  # noqa: PLW0108  looked up in the kernel
        (lambda x: nisa.tensor_scalar(nl.load(x), op0=nl.add, operand0=1, speed=2), "unexpected keyword"),
        (lambda x: bool(nl.load(x) > 0), "not known"),
        (lambda x: nl.program_id(x.ndim - 2), "grid"),
    ],
)
def test_a_fault_is_refused_with_its_line(body, message):
    with pytest.raises(KernelError, match=message) as error:
        run(Call(body, (TILE,), {}), "v2", values=True)
    assert error.value.site is not None
    assert error.value.site.file == __file__
    assert error.value.site.line == body.__code__.co_firstlineno
