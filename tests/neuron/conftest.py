"""Shared by the tests of the device's executors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from corepipe.kernels import native


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    pool = native().Pool(2)
    yield pool
    pool.close()
