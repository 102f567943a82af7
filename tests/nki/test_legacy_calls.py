"""Calls of kernels: decorators, grids, outputs and the modules that kernels import."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

import corepipe.nki as nki_simulator
from corepipe.errors import UserError
from corepipe.nki.core.errors import KernelError

with nki_simulator.installed():
    import neuronxcc.nki.typing as nt
    from neuronxcc import nki
    from neuronxcc.nki import isa as nisa
    from neuronxcc.nki import language as nl


def doubled(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x) * 2)
    return out


X = np.arange(64, dtype=np.float32).reshape(8, 8)


@pytest.mark.parametrize(
    "kernel",
    [
        doubled,
        nki.jit(doubled),
        nki.jit(mode="simulation", platform_target="trn2")(doubled),
        nki.trace(doubled),
    ],
)
def test_a_kernel_is_a_function_with_a_decorator_or_without(kernel):
    result = nki_simulator.simulate(kernel, X)
    np.testing.assert_array_equal(result.outputs[0], 2 * X)
    assert 0 < result.low <= result.latency_us <= result.high


def test_a_kernel_that_is_called_from_a_kernel_runs_inline():
    inner = nki.jit(doubled)

    @nki.jit
    def outer(x):
        return inner(inner(x))

    np.testing.assert_array_equal(outer(X), 4 * X)


def test_outputs_are_all_that_is_returned():
    @nki.jit
    def both(x):
        return doubled(x), doubled(doubled(x))

    twice, four = both(X)
    np.testing.assert_array_equal(twice, 2 * X)
    np.testing.assert_array_equal(four, 4 * X)


def test_a_kernel_may_write_to_a_parameter():
    @nki.jit
    def into(x, out):
        nl.store(out, nl.load(x) + 1)

    result = nki_simulator.simulate(into, X, np.zeros_like(X))
    assert len(result.outputs) == 1
    np.testing.assert_array_equal(result.outputs[0], X + 1)
    given = np.zeros_like(X)
    nki.simulate_kernel(into, X, given)
    np.testing.assert_array_equal(given, X + 1)


def test_programs_of_a_grid_share_their_output():
    @nki.jit
    def rows(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        assert nl.num_programs(0) == 4
        i = nl.program_id(0) * 2 + nl.program_id(1)
        nl.store(out[nl.ds(i, 1)], nl.load(x[nl.ds(i, 1)]) * i)
        return out

    want = X * np.arange(8)[:, None]
    np.testing.assert_array_equal(rows[nl.nc(2) * 2, 2](X), want)
    result = nki_simulator.simulate(rows, X, grid=(4, 2))
    np.testing.assert_array_equal(result.outputs[0], want)


def test_a_benchmark_has_percentiles_of_its_time():
    kernel = nki.benchmark(warmup=1, iters=2)(doubled)
    kernel(nt.tensor[[8, 8], nl.float32])
    latency = kernel.benchmark_result.nc_latency
    assert latency.get_latency_percentile(50) == latency.get_latency_percentile(99) > 0
    assert latency.get_latency_percentile(50) == nki_simulator.simulate(doubled, X, values=False).latency_us


def test_numbers_and_keywords_are_passed_as_they_are():
    @nki.jit
    def scaled(x, factor, *, shift=0.0):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x) * factor + shift)
        return out

    np.testing.assert_array_equal(scaled(X, 3, shift=1), 3 * X + 1)


def test_names_of_instructions_speak_to_the_compiler_alone():
    @nki.jit
    def named(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm, name="out")
        nl.store(out, nisa.tensor_copy(nl.load(x), name="copied"))
        return out

    np.testing.assert_array_equal(named(X), X)


def test_what_a_kernel_raises_names_its_line():
    @nki.jit
    def wrong(x):
        assert x.shape == (1, 1), "a tile of one element"

    with pytest.raises(KernelError, match="AssertionError: a tile of one element") as error:
        wrong(X)
    assert error.value.site.line == wrong.function.__code__.co_firstlineno + 2


def test_an_unknown_target_is_refused():
    with pytest.raises(UserError, match="trn9"):
        nki_simulator.simulate(doubled, X, target="trn9")


def test_an_operation_outside_of_a_kernel_is_refused():
    with pytest.raises(KernelError, match="outside of a kernel"):
        nl.zeros((8, 8), nl.float32)


def test_modules_are_there_within_the_block_alone():
    before = {name: sys.modules.get(name) for name in ("neuronxcc", "neuronxcc.nki", "nki")}
    own = ModuleType("neuronxcc")
    sys.modules["neuronxcc"] = own
    try:
        with nki_simulator.installed():
            assert sys.modules["neuronxcc"] is not own
            import neuronxcc.nki.isa  # noqa: PLC0415
            from neuronxcc.nki.language import par_dim  # noqa: PLC0415

            assert neuronxcc.nki.isa.reciprocal
            assert par_dim(4) == 4
        assert sys.modules["neuronxcc"] is own
        assert not any(name.startswith("neuronxcc.") for name in sys.modules)
    finally:
        del sys.modules["neuronxcc"]
        sys.modules.update({name: module for name, module in before.items() if module is not None})


def test_a_kernel_imports_in_its_body():
    def kernel(x):
        from neuronxcc.nki import language  # noqa: PLC0415  as kernels do

        out = language.ndarray(x.shape, dtype=x.dtype, buffer=language.shared_hbm)
        language.store(out, language.load(x))
        return out

    np.testing.assert_array_equal(nki_simulator.simulate(kernel, X).outputs[0], X)


def test_a_module_that_is_not_there_is_no_module():
    with nki_simulator.installed(), pytest.raises(ModuleNotFoundError):
        import neuronxcc.starfish  # noqa: F401, PLC0415
