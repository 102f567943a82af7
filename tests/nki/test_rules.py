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
