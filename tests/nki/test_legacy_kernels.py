"""Kernels of the legacy dialect, from the call to the outputs, against numpy."""

from __future__ import annotations

import numpy as np

import corepipe.nki as nki_simulator

with nki_simulator.installed():
    from neuronxcc import nki
    from neuronxcc.nki import language as nl


@nki.jit
def exponentials(x):  # rows that do not fill the last tile are masked
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows, columns = x.shape
    for i in nl.affine_range(-(-rows // 128)):
        i_p = i * 128 + nl.arange(128)[:, None]
        i_f = nl.arange(columns)[None, :]
        tile = nl.load(x[i_p, i_f], mask=i_p < rows)
        nl.store(out[i_p, i_f], nl.exp(tile), mask=i_p < rows)
    return out


def test_a_masked_kernel_computes_all_rows_and_no_more():
    x = np.random.default_rng(0).standard_normal((300, 40)).astype(np.float32)
    result = nki_simulator.simulate(exponentials, x)
    np.testing.assert_allclose(result.outputs[0], np.exp(x), rtol=1e-6)
    assert result.latency_us > 0


def test_a_kernel_that_is_called_returns_its_output():
    x = np.ones((4, 8), np.float32)
    np.testing.assert_allclose(exponentials(x), np.exp(x), rtol=1e-6)
