"""Weights in huge pages: the bytes are the same in each way of reading."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from corepipe.neuron.host import huge_pages
from corepipe.neuron.host.huge_pages import HUGE

NBYTES = 3 * HUGE + 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(np.random.default_rng(0).bytes(NBYTES + 100))
    return path


def read(path: Path, nbytes: int) -> npt.NDArray[np.uint8]:
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return huge_pages.read(file, mapping, nbytes)


@pytest.mark.parametrize("nbytes", [10, HUGE - 1, HUGE, NBYTES])
def test_the_bytes_are_the_file_s(path: Path, nbytes: int) -> None:
    weights = read(path, nbytes)
    assert weights.tobytes() == path.read_bytes()[:nbytes]
    assert not weights.flags.writeable


def test_a_copy_has_the_bytes_of_the_file_on_a_huge_page(path: Path) -> None:
    with path.open("rb") as file:
        file.read(7)  # whatever the file's position
        copy = huge_pages._copy(file, NBYTES)
    assert copy.tobytes() == path.read_bytes()[:NBYTES]
    assert copy.ctypes.data % HUGE == 0
    assert not copy.flags.writeable


def test_a_file_that_was_written_is_read_back(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"anew")
        file.flush()
        huge_pages.forget_written(file)
    assert read(path, 4).tobytes() == b"anew"
