"""Rules of the device: each has a broken instruction, which is refused at its line, and a mended one."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.errors import KernelError
from corepipe.nki.core.instructions import Engine
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.core.tensors import View, whole
from corepipe.nki.rules.check import check

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def tile(recorder: Recorder, space: Space, *shape: int, dtype: object = np.float32) -> View:
    return whole(recorder.allocate(space, shape, dtype))


@pytest.mark.parametrize("generation", ["v2", "v3", "v4"])
def test_an_error_names_the_rule_the_line_the_core_and_the_way_out(generation: str) -> None:
    recorder = Recorder(generation, legacy=False, values=False)
    dst, wide = tile(recorder, Space.SBUF, 128, 8), tile(recorder, Space.SBUF, 256, 8)
    with pytest.raises(KernelError) as error:
        check(recorder, "tensor_copy", (Engine.VECTOR,), (dst,), (wide,))
    assert error.value.rule == "partitions"
    assert error.value.site is not None
    assert error.value.site.file == __file__
    assert "256" in str(error.value)
    assert f"NeuronCore-{generation}" in str(error.value)
    assert "cut" in str(error.value)


@pytest.mark.parametrize(
    ("count", "start", "legal"),
    [
        (128, 0, True),
        (96, 32, False),
        (64, 64, True),
        (64, 32, False),
        (33, 64, True),
        (32, 96, True),
        (32, 16, False),
        (1, 127, False),
        (1, 96, True),
        (65, 64, False),
    ],
)
def test_where_tiles_may_start(count: int, start: int, legal: bool) -> None:
    recorder = Recorder("v2", legacy=False, values=False)
    whole_tile = tile(recorder, Space.SBUF, 160, 8)
    view = whole_tile[start : start + count]
    try:
        check(recorder, "memset", (Engine.VECTOR,), (view,), ())
        found = ""
    except KernelError as error:
        found = error.rule
    assert found == ("" if legal else "start_partition")


def test_a_reshaped_tensor_is_judged_where_its_elements_are() -> None:
    recorder = Recorder("v2", legacy=False, values=False)
    other = tile(recorder, Space.SBUF, 64, 4, 32).reshaped((64, 128))
    check(recorder, "memset", (Engine.VECTOR,), (other[:32],), ())
    with pytest.raises(KernelError, match="starts at partition 16"):
        check(recorder, "memset", (Engine.VECTOR,), (other[16:32],), ())


@pytest.mark.parametrize(
    ("generation", "dtype", "most"),
    [("v2", np.float32, 512), ("v3", np.float32, 512), ("v4", np.float32, 4096), ("v4", BFLOAT16, 8192)],
)
def test_how_wide_a_product_may_be(generation: str, dtype: object, most: int) -> None:
    recorder = Recorder(generation, legacy=False, values=False)
    stationary = tile(recorder, Space.SBUF, 128, 128)
    for columns in (most, most + 1):
        moving = tile(recorder, Space.SBUF, 128, columns)
        dst = tile(recorder, Space.PSUM, 128, columns, dtype=dtype)
        try:
            check(recorder, "nc_matmul", (Engine.TENSOR,), (dst,), (stationary, moving))
            found = ""
        except KernelError as error:
            found = error.rule
        assert found == ("" if columns == most else "matmul_columns")


def test_a_legal_tile_is_seen_at_a_glance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that what is legal takes the short way: every instruction of a kernel passes here."""
    monkeypatch.setattr("corepipe.nki.rules.check.check_tile", None)
    recorder = Recorder("v2", legacy=True, values=False)
    tiles = tile(recorder, Space.SBUF, 128, 2048)
    dst = tile(recorder, Space.PSUM, 128, 512)
    check(recorder, "nc_matmul", (Engine.TENSOR,), (dst,), (tiles[:, :128], tiles[:, 512:1024]))
    check(recorder, "tensor_tensor", (Engine.VECTOR,), (tiles[:, :512],), (dst, tiles[:, 512:1024]))
