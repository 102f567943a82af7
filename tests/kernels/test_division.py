"""The division of a Linear's panels and rows among threads: counted, since no test machine has so many."""

from __future__ import annotations

from math import ceil

import pytest

from corepipe.kernels import _native
from corepipe.kernels.packing import PANEL

WIDTHS = {
    "SmolLM2-135M": (960, 576, 1536, 576),
    "TinyLlama-1.1B": (2560, 2048, 5632, 2048),
    "Llama-3.1-8B": (6144, 4096, 14336, 4096),
}
"""Columns of a layer's Linears: queries, keys and values; attention's output; gate and up together; down."""
THREADS = (4, 8, 16, 32, 64)
ROWS_OF_A_BLOCK = 7
"""Rows of a block in most tables, for many rows."""


def most(panels: int, blocks: int, threads: int, parts: int) -> int:
    """Returns the blocks that the busiest thread multiplies."""
    return ceil(panels * parts / threads) * ceil(blocks / parts)


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 19, 74])
@pytest.mark.parametrize("panels", [1, 2, 18, 30, 64, 128, 448])
@pytest.mark.parametrize("threads", [1, 2, 3, *THREADS])
def test_idle_threads_are_fewer_by_a_tenth_or_panels_stay_whole(
    panels: int, blocks: int, threads: int
) -> None:
    parts, idle = _native.divide(panels, blocks, threads)
    assert 1 <= parts <= blocks
    assert idle == most(panels, blocks, threads, parts) * threads - panels * blocks
    whole = most(panels, blocks, threads, 1)
    best = min(most(panels, blocks, threads, tried) for tried in range(1, blocks + 1))
    found = most(panels, blocks, threads, parts)
    assert parts == 1 or found < 0.9 * whole
    assert 0.9 * found <= best, "what is left to gain is less than a tenth"


@pytest.mark.parametrize("model", WIDTHS)
@pytest.mark.parametrize("threads", THREADS)
def test_a_layer_of_a_batch_leaves_less_idle(model: str, threads: int) -> None:
    """Threads multiply for at least four fifths of the time; a single block is divided as before."""
    for rows in (32, 128):
        blocks = ceil(rows / ROWS_OF_A_BLOCK)
        busy = total = 0
        for width in WIDTHS[model]:
            panels = ceil(width / PANEL)
            _, idle = _native.divide(panels, blocks, threads)
            assert idle <= most(panels, blocks, threads, 1) * threads - panels * blocks
            busy += panels * blocks
            total += panels * blocks + idle
            assert _native.divide(panels, 1, threads)[0] == 1
        assert busy >= 0.8 * total
