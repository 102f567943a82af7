"""Cosines, powers and logarithms equal the C library's, and have the same bits on another CPU."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np

from corepipe.neuron.numerics import elementary
from tests.digest.check import other_machine


def angles() -> np.ndarray:
    rng = np.random.default_rng(2)
    near_zeros = np.arange(1, 4000) * (math.pi / 2)
    return np.concatenate([[0.0, -0.0], near_zeros, rng.uniform(-10, 10, 2000), rng.uniform(0, 1e6, 20_000)])


def digest() -> str:
    return hashlib.sha256(b"".join(x.tobytes() for x in elementary.cos_sin(angles()))).hexdigest()


def test_cosines_and_sines_are_the_c_librarys() -> None:
    x = angles()
    for got, function in zip(elementary.cos_sin(x), (math.cos, math.sin), strict=True):
        np.testing.assert_allclose(got, [function(one) for one in x], rtol=0, atol=1e-15)


def test_shapes_are_kept() -> None:
    cos, sin = elementary.cos_sin(np.zeros((3, 5)))
    np.testing.assert_array_equal((cos, sin), (np.ones((3, 5)), np.zeros((3, 5))))


def test_they_do_not_depend_on_numpys_instructions() -> None:
    command = [sys.executable, "-c", "from tests.neuron.test_elementary import digest; print(digest())"]
    env = {**os.environ, **other_machine()}
    assert (
        subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        == digest()
    )


def test_a_turns_parts_are_exact() -> None:
    """The parts are exact for as many quarters as a million needs; together they are pi / 2 to 1e-36."""
    first, second, third = elementary._QUARTER
    most = Fraction(2**20 - 1)
    assert all(Fraction(float(most) * part) == most * Fraction(part) for part in (first, second))
    pi = Fraction("3.1415926535897932384626433832795028841971693993751")
    assert abs(sum(map(Fraction, (first, second, third))) - pi / 2) < Fraction(1, 10**36)


def test_powers_and_logarithms_are_the_nearest() -> None:
    assert elementary.power(2.0, -0.5) == math.sqrt(0.5)
    assert elementary.power(10000.0, 0.25) == 10.0
    assert elementary.log(math.e) == 1.0
    assert math.isclose(elementary.log(131072.0), 17 * math.log(2), rel_tol=1e-15)
