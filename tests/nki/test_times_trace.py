"""Time lines of kernels, read back by Perfetto's own classes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import Engine, LoopKind
from corepipe.nki.core.recorder import Recorder, recording
from corepipe.nki.core.tensors import whole
from corepipe.nki.isa.transfers import dma_copy
from corepipe.nki.isa.vector import tensor_tensor
from corepipe.nki.timing.timed import timed
from corepipe.nki.timing.times import Times
from corepipe.nki.timing.trace import save_trace
from tests.perfetto_reader import ReadTrack, read


def added(tiles: int) -> Times:
    """Returns the times of a kernel that doubles so many tiles."""
    recorder = Recorder("v2", legacy=True, values=False)
    with recording(recorder):
        source = whole(recorder.give("x", np.zeros((128 * tiles, 512), np.float32)))
        target = whole(recorder.allocate(Space.HBM, (128 * tiles, 512), np.float32))
        for i in recorder.loop(LoopKind.AFFINE, range(tiles)):
            tile = whole(recorder.allocate(Space.SBUF, (128, 512), np.float32))
            dma_copy(tile, source[128 * i : 128 * i + 128])
            tensor_tensor(tile, tile, tile, "add")
            dma_copy(target[128 * i : 128 * i + 128], tile)
    return timed(recorder)


@pytest.fixture(scope="module")
def times() -> Times:
    return added(8)


@pytest.fixture(scope="module")
def tracks(times: Times, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], ReadTrack]:
    path = tmp_path_factory.mktemp("trace") / "kernel.pftrace"
    assert save_trace(times, path) == path.stat().st_size
    return read(Path(path))


def test_every_instruction_is_on_a_track_of_its_engine(
    times: Times, tracks: dict[tuple[str, str], ReadTrack]
) -> None:
    for engine in (Engine.VECTOR, Engine.DMA):
        own = [t for (_, name), t in tracks.items() if name.split()[0] == engine]
        found = sorted(s.start for track in own for s in track.slices)
        expected = sorted(round(s.start * 1e9) for s in times.spans if s.engine is engine)
        assert found == pytest.approx(expected, abs=1)


def test_slices_of_a_track_do_not_overlap_and_name_op_and_line(
    tracks: dict[tuple[str, str], ReadTrack],
) -> None:
    slices = 0
    for track in tracks.values():
        for one, other in pairwise(track.slices):
            assert one.end <= other.start
        for piece in track.slices:
            slices += 1
            assert piece.name in {"dma_copy", "tensor_tensor"}
            assert piece.args["line"].startswith("test_times_trace.py:")
    assert slices == 24


def test_turns_that_were_not_simulated_are_shown_as_such(tmp_path: Path) -> None:
    times = added(60)
    (gap,) = times.gaps
    assert 0 < gap.start < gap.end < times.seconds
    (last,) = [s for s in times.spans if s.engine is Engine.VECTOR and s.start > gap.end]
    assert len([s for s in times.spans if s.engine is Engine.VECTOR]) + gap.turns == 60
    path = tmp_path / "kernel.pftrace"
    save_trace(times, path)
    ((_, track),) = [item for item in read(path).items() if item[0][1] == "turns like those before"]
    (piece,) = track.slices
    assert (piece.name, piece.end) == (f"{gap.turns} turns", round(gap.end * 1e9))
    assert last.start * 1e9 > piece.end
