"""Trace files, read back with Perfetto's own protobuf classes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from corepipe.neuron.timing.perfetto import encode, varint, write
from corepipe.neuron.timing.trace import PerfettoTrace, Slice, TraceCounter, TraceProcess, Track
from tests.perfetto_reader import read


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**32, 2**64 - 1])
def test_varint_is_protobufs(number):
    packet = proto.TracePacket(timestamp=number)
    assert packet.SerializeToString() == varint(8 << 3) + varint(number)


def nested(depth: int = 3) -> st.SearchStrategy[list]:
    """Draws trees of (gap before, name, children): a leaf takes one second, "b" none."""
    leaf = st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.just([]))
    if depth == 0:
        return st.lists(leaf, max_size=3)
    return st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc"), nested(depth - 1)), max_size=3)


def laid_out(tree: list, at: float) -> tuple[list[Slice], float]:
    """Returns slices, and the end of the last one."""
    slices = []
    for gap, name, children in tree:
        inner, end = laid_out(children, at + gap)
        end = max(end, at + gap + (0 if name == "b" else 1))
        slices.append(Slice(name, at + gap, end, children=inner))
        at = end
    return slices, at


def flat(slices: list[Slice], depth: int = 0) -> list[tuple[str, float, float, int]]:
    """Returns name, start and end in nanoseconds, and depth; parents first."""
    second = 10**9
    return [
        entry
        for piece in slices
        for entry in (
            (piece.name, piece.start * second, piece.end * second, depth),
            *flat(list(piece.children), depth + 1),
        )
    ]


@settings(deadline=None, max_examples=40)
@given(st.lists(nested(), min_size=1, max_size=3))
def test_slices_come_back_as_they_nest(trees):
    placed = [laid_out(tree, 0.0)[0] for tree in trees]
    tracks = [Track(f"t{i}", slices) for i, slices in enumerate(placed)]
    found = read(b"".join(encode(PerfettoTrace([TraceProcess("core", tracks)]))))
    for i, slices in enumerate(placed):
        got = [(s.name, s.start, s.end, s.depth) for s in found["core", f"t{i}"].slices]
        assert got == flat(slices)


@settings(deadline=None)
@given(st.lists(st.floats(1e-12, 1e-6), min_size=1, max_size=50))
def test_rounding_to_nanoseconds_keeps_neighbours_apart(lengths):
    """However short they are, slices neither overlap nor leave their parent."""
    pieces, at = [], 1.0
    for length in lengths:
        pieces.append(Slice("op", at, at + length))
        at += length
    track = Track("t", [Slice("step", 1.0, at, children=pieces)])
    step, *ops = read(b"".join(encode(PerfettoTrace([TraceProcess("core", [track])]))))["core", "t"].slices
    assert all(a.end <= b.start for a, b in pairwise(ops))
    assert step.start == ops[0].start
    assert step.end == ops[-1].end


def test_args_flows_and_counters(tmp_path):
    args = {"bytes": 3, "flops": 1.5, "by": "memory", "emulated": True}
    sender = TraceProcess("a", [Track("steps", [Slice("send", 0.0, 1.0, args, sends=(7,))])])
    receiver = TraceProcess(
        "b",
        [Track("steps", [Slice("receive", 2.0, 3.0, receives=(7,))])],
        [TraceCounter("HBM", "GB/s", [(0.5, 2.0), (1.0, 0.0)])],
    )
    path = tmp_path / "trace.pftrace"
    assert write(PerfettoTrace([sender, receiver]), path) == path.stat().st_size
    found = read(path)
    (send,), (receive,) = found["a", "steps"].slices, found["b", "steps"].slices
    assert send.args == args
    assert (send.flows, receive.ended_flows) == ([7], [7])
    assert found["b", "HBM"].values == [(500_000_000, 2.0), (1_000_000_000, 0.0)]


def test_threads_are_numbered_from_their_process_on():
    """Perfetto shows threads by number, and the one that has its process's number first."""
    tracks = [Track(name, []) for name in ("steps", "TensorE", "VectorE")]
    packets = proto.Trace.FromString(
        b"".join(encode(PerfettoTrace([TraceProcess("a", tracks), TraceProcess("b", tracks)])))
    ).packet
    threads = [p.track_descriptor.thread for p in packets if p.track_descriptor.HasField("thread")]
    assert [t.thread_name for t in sorted(threads, key=lambda t: (t.pid, t.tid))] == [
        "steps",
        "TensorE",
        "VectorE",
    ] * 2
    assert len({t.tid for t in threads}) == 6
    assert all(t.tid == t.pid for t in threads if t.thread_name == "steps")
