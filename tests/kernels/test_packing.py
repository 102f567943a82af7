from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.kernels import packing

KINDS: tuple[packing.Kind, ...] = ("int8", "int8w", "bf16", "fp32")
STEP = {"int8": 4, "int8w": 2, "bf16": 2, "fp32": 1}
STORED = {"int8": np.uint8, "int8w": np.int8, "bf16": ml_dtypes.bfloat16, "fp32": np.float32}


def _weight(kind: packing.Kind, n: int, k: int) -> np.ndarray:
    rng = np.random.default_rng(n * 1000 + k)
    if kind.startswith("int8"):
        return rng.integers(-127, 128, (n, k), dtype=np.int8)
    return rng.standard_normal((n, k)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (33, 65), (64, 128)])
def test_layout_is_as_documented(kind: packing.Kind, n: int, k: int) -> None:
    weight = _weight(kind, n, k)
    step, padded_k = STEP[kind], -(-k // 64) * 64
    panels = packing.pack(kind, weight).view(STORED[kind]).reshape(-1, padded_k // step, 32, step)
    offset = 128 if kind == "int8" else 0
    for row in range(len(panels) * 32):
        for column in range(padded_k):
            stored = float(panels[row // 32, column // step, row % 32, column % step]) - offset
            inside = row < n and column < k
            assert stored == (
                float(weight[row, column].astype(STORED[kind] if kind == "bf16" else weight.dtype))
                if inside
                else 0
            )


@given(st.sampled_from(KINDS), st.integers(1, 100), st.integers(1, 200))
def test_unpack_inverts_pack(kind: packing.Kind, n: int, k: int) -> None:
    weight = _weight(kind, n, k)
    packed = packing.pack(kind, weight)
    assert packed.size == packing.packed_bytes(kind, n, k)
    unpacked = packing.unpack(kind, packed, n, k)
    want = weight.astype(ml_dtypes.bfloat16).astype(np.float32) if kind == "bf16" else weight
    np.testing.assert_array_equal(unpacked, want)
    np.testing.assert_array_equal(packing.pack(kind, unpacked), packed)


@pytest.mark.parametrize(
    ("kind", "weight"),
    [
        ("int8", np.zeros((2, 2), np.float32)),
        ("bf16", np.zeros((2, 2), np.int8)),
        ("fp32", np.zeros(4, np.float32)),
        ("int8w", np.full((2, 2), -128, np.int8)),
    ],
)
def test_pack_refuses(kind: packing.Kind, weight: np.ndarray) -> None:
    with pytest.raises(ValueError, match="cannot pack"):
        packing.pack(kind, weight)


def test_unpack_refuses_another_size() -> None:
    with pytest.raises(ValueError, match="2048 bytes, not 2047"):
        packing.unpack("int8", np.zeros(2047, np.uint8), 32, 64)
