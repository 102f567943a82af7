"""Tests of the timeline, written and read with Perfetto's own classes: it nests, adds up, and nothing
overlaps."""

from __future__ import annotations

from itertools import pairwise

import pytest

from corepipe.neuron.timing.perfetto import encode
from corepipe.planning.profiling.profile import ProfileRun
from corepipe.planning.profiling.step_trace import ENGINES, build
from tests.perfetto_reader import ReadTrack, read
from tests.planning.profiles import run

CASES = [
    {},
    {"tensor": 3, "profile": "sync", "decode_steps": 1},
    {"pipeline": 4, "decode_steps": 1},
    {"pipeline": 2, "tensor": 3, "profile": "vllm-host-sampling", "decode_steps": 1},
    {"model": "qwen1.5-moe", "where": "trn1.32xlarge", "tensor": 4, "batch": 2, "decode_steps": 1},
    {"where": "inf1.6xlarge", "pipeline": 5, "fmt": "int8", "decode_steps": 1},
    {"model": "bert-base-uncased", "where": "inf2.xlarge"},
]
Tracks = dict[tuple[str, str], ReadTrack]


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> tuple[ProfileRun, Tracks]:
    found = run(**request.param)
    return found, read(b"".join(encode(build(found))))


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def cores(tracks: Tracks) -> list[str]:
    return [process for process, name in tracks if process.startswith("NC") and name == "steps"]


def test_a_process_for_each_core_with_a_row_for_each_engine(case):
    found, tracks = case
    assert len(cores(tracks)) == len(found.programs)
    for core in cores(tracks):
        rows = {name for process, name in tracks if process == core}
        assert rows == {"steps", *ENGINES.values(), "HBM"}
    assert all("emulated" in process for process, _ in tracks)


def test_nothing_overlaps_and_children_lie_within_their_parents(case):
    _, tracks = case
    for track in tracks.values():
        for depth in range(4):
            assert all(a.end <= b.start for a, b in pairwise(track.at(depth)))
        parents: list = []
        for piece in track.slices:
            del parents[piece.depth :]
            assert piece.start <= piece.end
            if parents:
                assert parents[-1].start <= piece.start <= piece.end <= parents[-1].end
            parents.append(piece)
    engines = [track for (_, name), track in tracks.items() if name in ENGINES.values()]
    assert all(piece.depth == 0 for track in engines for piece in track.slices)
    assert any(track.slices for track in engines)


def test_the_critical_path_of_a_step_adds_up_to_its_predicted_time(case):
    found, tracks = case
    replica = next(track for (process, _), track in tracks.items() if not process.startswith("NC"))
    steps = replica.at(0)
    assert [piece.name for piece in steps] == [step.name for step in found.steps]
    for piece, step in zip(steps, found.steps, strict=True):
        assert abs(piece.end - piece.start - nanoseconds(step.seconds)) <= 1
        parts = [part for part in replica.at(1) if piece.start <= part.start < piece.end]
        assert sum(part.end - part.start for part in parts) == piece.end - piece.start
        device = sum(part.end - part.start for part in parts if "host" not in part.name)
        assert device == pytest.approx(1e9 * found.cost.latency(step.shape), abs=2 * len(parts))


def test_the_ops_of_a_core_add_up_to_its_stage(case):
    found, tracks = case
    for core, program in zip(cores(tracks), found.programs, strict=True):
        track = tracks[core, "steps"]
        steps = track.at(0)
        for piece, step in zip(steps, found.steps, strict=True):
            layers = [part for part in track.at(1) if piece.start <= part.start and part.end <= piece.end]
            assert abs(sum(part.end - part.start for part in layers) - piece.end + piece.start) <= 1
            ops = [op for op in track.at(2) if piece.start <= op.start and op.end <= piece.end]
            own = sum(op.end - op.start for op in ops)
            assert own == pytest.approx(1e9 * found.cost.seconds(program.core, step.shape), abs=2 * len(ops))
        assert len(track.at(2)) == len(program.ops) * len(found.steps)


def test_engines_work_within_their_ops(case):
    _, tracks = case
    for core in cores(tracks):
        spans: dict[str, list[tuple[int, int]]] = {}
        for op in tracks[core, "steps"].at(2):
            spans.setdefault(op.name, []).append((op.start, op.end))
        for engine in ENGINES.values():
            for piece in tracks[core, engine].slices:
                assert any(start <= piece.start <= piece.end <= end for start, end in spans[piece.name])


def test_slices_carry_bytes_and_flops_of_the_ops(case):
    found, tracks = case
    step = found.steps[0]
    for core, program in zip(cores(tracks), found.programs, strict=True):
        times = found.op_times(program.core, step)
        first = tracks[core, "steps"].at(2)[: len(times)]
        assert [op.args["flops"] for op in first] == [time.flops for time in times]
        assert [op.args["hbm_read_bytes"] for op in first] == [time.hbm_read_bytes for time in times]


def test_bandwidth_is_what_the_dma_moves(case):
    found, tracks = case
    for core, program in zip(cores(tracks), found.programs, strict=True):
        values = tracks[core, "HBM"].values
        moved = sum(value * (end - start) for (start, value), (end, _) in pairwise(values))
        expected = sum(
            time.hbm_read_bytes + time.hbm_write_bytes
            for step in found.steps
            for time in found.op_times(program.core, step)
            if "dma" in time.engines
        )
        assert moved == pytest.approx(expected, rel=0.05)


def test_activations_flow_from_each_stage_to_the_next():
    found = run(pipeline=3, tensor=3, decode_steps=1)
    tracks = read(b"".join(encode(build(found))))
    sent = [flow for track in tracks.values() for piece in track.slices for flow in piece.flows]
    received = [flow for track in tracks.values() for piece in track.slices for flow in piece.ended_flows]
    assert sorted(sent) == sorted(received)
    assert len(set(sent)) == len(sent) == 2 * 3 * len(found.steps)
    senders = {flow: p for p, t in tracks.items() for piece in t.slices for flow in piece.flows}
    receivers = {flow: p for p, t in tracks.items() for piece in t.slices for flow in piece.ended_flows}
    for flow, (process, _) in senders.items():
        stage, rank = process.split()[2], process.split()[4]
        assert receivers[flow][0].split()[2:5] == [str(int(stage) + 1), "rank", rank]


def test_slices_are_named_by_layer_and_op():
    tracks = read(b"".join(encode(build(run(**CASES[1])))))
    names = {piece.name for piece in tracks["NC0 stage 0 rank 0 (emulated)", "TensorE"].slices}
    assert {"L0 Linear self_attn.q_proj", "L29 Linear mlp.down_proj", "L3 Attention"} <= names
    together = {piece.name for piece in tracks["NC0 stage 0 rank 0 (emulated)", "CC"].slices}
    assert {"L0 AllReduce self_attn.o_proj", "L0 AllReduce mlp.down_proj"} <= together
    layers = [piece.name for piece in tracks["NC0 stage 0 rank 0 (emulated)", "steps"].at(1)][:32]
    assert layers == ["embedding", *(f"layer {i}" for i in range(30)), "head"]
