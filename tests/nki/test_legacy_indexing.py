"""Indices and masks of the legacy dialect against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.nki.core.affine import IndexTile
from corepipe.nki.core.buffers import Space
from corepipe.nki.core.errors import KernelError
from corepipe.nki.core.recorder import Recorder, recording
from corepipe.nki.core.tensors import View, whole
from corepipe.nki.dialects.legacy.indices import MGrid, arange, ds
from corepipe.nki.dialects.legacy.results import Mask


def tensor(shape: tuple[int, ...]) -> tuple[View, np.ndarray]:
    """Returns a tensor in HBM and the array that it holds."""
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    with recording(Recorder("v2", legacy=True)) as recorder:
        return whole(recorder.give("x", values)), values


@st.composite
def basic_keys(draw, shape):
    """An integer, a slice within the axis, `None` or `...` for each axis."""
    keys = []
    for n in shape:
        kind = draw(st.sampled_from(["int", "slice", "new", "all"]))
        if kind == "new":
            keys.append(None)
        if kind == "int":
            keys.append(draw(st.integers(-n, n - 1)))
        elif kind == "slice":
            start = draw(st.integers(0, n - 1))
            keys.append(slice(start, draw(st.integers(start + 1, n)), draw(st.sampled_from([None, 1, 2, 3]))))
        else:
            keys.append(slice(None))
    if draw(st.booleans()):
        keys = [*keys[: draw(st.integers(0, len(shape)))], ...]
    return tuple(keys)


@given(st.data())
def test_integers_slices_and_new_axes_are_numpys(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    key = data.draw(basic_keys(shape))
    view, values = tensor(shape)
    found = view[key]
    assert found.shape == values[key].shape
    np.testing.assert_array_equal(found.array(), values[key])


@given(st.data())
def test_index_tiles_are_numpys_index_arrays(data):
    rank = data.draw(st.integers(1, 3))
    lengths = [data.draw(st.integers(1, 4)) for _ in range(rank)]
    keys, arrays, shape = [], [], []
    for _ in range(data.draw(st.integers(1, 4))):
        tile, array, top = _combination(data, lengths)
        keys.append(tile)
        arrays.append(array)
        shape.append(top + 1)
    view, values = tensor(tuple(shape))
    found, wanted = view[tuple(keys)], values[tuple(np.asarray(a) for a in arrays)]
    if all(isinstance(k, int) for k in keys):
        wanted = np.asarray(wanted)
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found.array(), wanted)


def _combination(data, lengths):
    """Returns an affine combination of aranges as an index tile and as an array, and its largest index."""
    base = data.draw(st.integers(0, 3))
    tile, array = base, np.asarray(base)
    for axis, n in enumerate(lengths):
        factor = data.draw(st.integers(0, 3))
        if factor:
            key = tuple(slice(None) if a == axis else None for a in range(len(lengths)))
            tile = factor * arange(n)[key] + tile
            array = factor * np.arange(n)[key] + array
    return tile, array, int(array.max())


@given(st.data())
def test_views_of_views_are_numpys(data):
    view, values = tensor((4, 5, 6))
    for _ in range(3):
        if not values.ndim:
            break
        key = data.draw(basic_keys(values.shape))
        view, values = view[key], values[key]
        assert view.shape == values.shape
        np.testing.assert_array_equal(view.array(), values)


@given(st.integers(0, 5), st.integers(0, 7), st.integers(1, 6), st.integers(1, 8))
def test_a_mask_of_comparisons_is_a_box(rows, columns, height, width):
    i_p, i_f = MGrid()[0:height, 0:width]
    where = np.broadcast_to(
        (np.arange(height)[:, None] < rows) & (np.arange(width)[None] < columns), (height, width)
    )
    with recording(Recorder("v2", legacy=True)) as recorder:
        mask = Mask.of((i_p < rows) & (i_f < columns), (height, width))
        view = whole(recorder.allocate(Space.SBUF, (height, width), np.float32))
        if mask is None:
            assert where.all()
        else:
            assert mask.exact is None
            assert mask.part(view).size == where.sum()


@given(st.data())
def test_a_mask_that_is_no_box_writes_what_it_includes_alone(data):
    where = np.array(data.draw(st.lists(st.booleans(), min_size=12, max_size=12))).reshape(3, 4)
    with recording(Recorder("v2", legacy=True)) as recorder:
        view = whole(recorder.allocate(Space.SBUF, (3, 4), np.float32))
        view.array()[...] = 7
        mask = Mask.of(where, (3, 4))

        def run(dst: View) -> None:
            dst.array()[...] = 1

        if mask is None:
            run(view)
        else:
            mask.apply(run, view)
        np.testing.assert_array_equal(view.array(), np.where(where, 1, 7))


def test_axes_stand_where_the_first_index_tile_stands():
    view, values = tensor((3, 4, 5, 6))
    i_p, i_f = MGrid()[0:3, 0:6]
    found = view[i_p, 2, ds(1, 3), i_f]
    assert found.shape == (3, 6, 3)
    np.testing.assert_array_equal(found.array(), values[:, 2, 1:4, :].transpose(0, 2, 1))


def test_a_grid_names_its_axes():
    grid = MGrid()[0:4, 0:3, 0:2]
    assert [t.shape for t in (grid.p, grid.x, grid.y)] == [(4, 1, 1), (1, 3, 1), (1, 1, 2)]


def test_quotients_and_remainders_are_arrays():
    tile = arange(6)
    np.testing.assert_array_equal(tile // 4, np.arange(6) // 4)
    np.testing.assert_array_equal(tile % 4, np.arange(6) % 4)


def test_an_index_of_one_is_repeated_without_a_step():
    assert arange(3, 4).steps == (0,)
    assert (arange(1)[:, None] + arange(5)[None, :]).steps == (0, 1)
    assert isinstance(arange(2)[:, None] * 3, IndexTile)


@pytest.mark.parametrize("key", [(0, 0, 0), "a", 1.5])
def test_what_is_no_index_is_refused(key):
    view, _ = tensor((2, 3))
    with pytest.raises(KernelError):
        view[key]
