"""Collectives on values: order, rounding, waiting; and the error of splitting a sum."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.neuron.formats import DType
from corepipe.neuron.numerics.arithmetic import all_reduce_bound, round_to
from corepipe.neuron.numerics.collectives import Links, all_gather, all_reduce


def test_all_reduce_adds_in_rank_order_and_rounds_once():
    big, small = np.float32([[2.0**24]]), np.float32([[1]])
    assert all_reduce([big, small, small], DType.FP32) == 2.0**24
    assert all_reduce([small, small, big], DType.FP32) == 2.0**24 + 2
    half = np.float32([[2.0**-8]])
    assert all_reduce([small, half, half], DType.BF16) == 1 + 2.0**-7


def test_all_reduce_leaves_its_parts_alone():
    parts = [np.float32([[1, 2]]), np.float32([[3, 4]])]
    np.testing.assert_array_equal(all_reduce(parts, DType.BF16), [[4, 6]])
    np.testing.assert_array_equal(parts[0], [[1, 2]])


def test_all_gather_drops_padding():
    parts = [np.float32([[1, 2, 3]]), np.float32([[4, 9, 9]])]
    np.testing.assert_array_equal(all_gather(parts, [3, 1]), [[1, 2, 3, 4]])


@settings(derandomize=True)
@given(st.integers(2, 9), st.integers(0, 1000), st.sampled_from([DType.BF16, DType.FP16]))
def test_a_split_sum_stays_within_its_bound(ranks, seed, dtype):
    rng = np.random.default_rng(seed)
    parts = (rng.standard_normal((ranks, 1, 50)) * 10.0 ** rng.integers(-2, 3)).astype(np.float32)
    unsplit = round_to(parts.astype(np.float64).sum(axis=0), dtype)
    split = all_reduce([round_to(part, dtype) for part in parts], dtype)
    error = np.abs(split.astype(np.float64) - unsplit)
    bound = all_reduce_bound(list(parts), dtype)
    assert np.all(error <= bound * (1 + 1e-3))
    assert error.max() > 0.02 * bound.max()


def test_links_keep_the_order_of_a_channel():
    links = Links()
    assert links.receive(0, 1) is None
    first, second = np.float32([[1]]), np.float32([[2]])
    links.send(0, 1, first)
    links.send(0, 1, second)
    assert links.receive(1, 0) is None
    assert links.receive(0, 1) is first
    assert links.receive(0, 1) is second
    assert links.receive(0, 1) is None


def test_an_exchange_waits_for_every_rank():
    links = Links()
    near, far = range(3), range(3, 6)
    parts = [np.float32([[rank]]) for rank in range(3)]
    assert links.exchange(near, 0, 2, parts[2]) is None
    assert links.exchange(near, 0, 0, parts[0]) is None
    assert links.exchange(near, 0, 2, parts[2]) is None
    assert links.exchange(far, 0, 4, parts[1]) is None
    assert links.exchange(near, 0, 1, parts[1]) == parts
    assert links.exchange(near, 0, 0, parts[0]) == parts
