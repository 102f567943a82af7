"""Packed weights: the file holds what was written, is packed once, and is never used incomplete."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import BLOCK_SIZE, BLOCKS, Chunk, Features, build, read_weights, step_inputs

from corepipe.errors import UserError
from corepipe.kernels import native, packing
from corepipe.neuron.axes import PAD, AxisShard, HeadLayout, cut, hidden, vocabulary
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host import packed_index
from corepipe.neuron.host.executor import NativeExecutor, bind_matrix
from corepipe.neuron.host.packed_index import ALIGNMENT, TENSOR_ALIGNMENT
from corepipe.neuron.host.weights import (
    PARTIAL,
    InMemoryWeights,
    PackedTensor,
    PackedWeights,
    _partial_file,
    pack,
    packed_weights,
)
from corepipe.neuron.numerics.int4 import ALL, Int8
from corepipe.neuron.values import WeightRole, WeightSpec
from tests.kernels.harness import one_step
from tests.reference.arithmetic import linear, round_to

FEATURES = Features(layers=1, hidden=64, heads=HeadLayout(4, 2, 64), ffn=128, vocab=160, qkv_bias=True)


@dataclass
class Tensors:
    """A checkpoint in memory that counts how often it is read."""

    source: Callable[[str], np.ndarray]
    fingerprint: str = "first"
    reads: int = 0
    fails_after: int | None = None

    def read(self, name: str, rows: slice = ALL) -> np.ndarray:
        if self.reads == self.fails_after:
            raise RuntimeError("the disk is gone")
        self.reads += 1
        return self.source(name)[rows]

    def stored(self, name: str, rows: slice = ALL) -> np.ndarray:
        return self.read(name, rows)

    def by_rows(self, name: str) -> bool:
        return False


def equal(a: PackedTensor, b: PackedTensor) -> bool:
    scales = a.scale is b.scale is None or np.array_equal(a.scale, b.scale)
    return (a.kind, a.shape) == (b.kind, b.shape) and np.array_equal(a.data, b.data) and scales


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("fmt", FORMATS)
def test_what_is_written_is_what_is_read(tmp_path, fmt, tied):
    graph = build(Features(**{**vars(FEATURES), "tied": tied}), fmt)
    source = read_weights(graph)
    weights, memory = packed_weights(graph, Tensors(source), tmp_path), InMemoryWeights(graph, source)
    for spec in graph.weights():
        found = weights[spec.name]
        assert equal(found, memory[spec.name])
        assert not found.data.flags.writeable
        offset = weights._index.tensors[spec.name].data.offset
        assert offset >= ALIGNMENT
        assert offset % TENSOR_ALIGNMENT == 0
        if spec.role is WeightRole.VECTOR:
            np.testing.assert_array_equal(found.rows(), source(spec.name))


def test_the_second_start_reads_nothing(tmp_path):
    graph = build(FEATURES)
    checkpoint = Tensors(read_weights(graph))
    told: list[float] = []
    first = packed_weights(graph, checkpoint, tmp_path, lambda _what, done: told.append(done))
    reads = checkpoint.reads
    second = packed_weights(graph, checkpoint, tmp_path)
    assert (second.path, checkpoint.reads) == (first.path, reads)
    assert reads == len(list(graph.weights())) == len(told)
    assert told == sorted(told)
    assert list(tmp_path.iterdir()) == [first.path]


def test_other_content_or_format_is_another_file(tmp_path):
    graph = build(FEATURES)
    first, other = read_weights(graph), read_weights(graph, seed=1)
    formats = [build(FEATURES, fmt) for fmt in ("fp32", "int8", "int8-weights", "int4-weights")]
    packed = [
        packed_weights(graph, Tensors(first), tmp_path),
        packed_weights(graph, Tensors(other, "second"), tmp_path),
        *(packed_weights(like, Tensors(first), tmp_path) for like in formats),
    ]
    assert len({p.path for p in packed}) == len(packed)
    expected = InMemoryWeights(graph, other)
    assert equal(packed[1]["head.weight"], expected["head.weight"])
    assert not equal(packed[0]["head.weight"], expected["head.weight"])


def test_one_file_serves_every_placement(tmp_path):
    graph = build(FEATURES, "int8")
    weights = packed_weights(graph, Tensors(read_weights(graph)), tmp_path)
    pool = native().Pool(1)
    inputs = step_inputs(graph, [Chunk(0, 0, 9)])
    for placement in (Placement(), Placement(tensor=2), Placement(tensor=4)):
        programs = compile_graph(graph, placement)
        mapped, memory = (
            NativeExecutor(programs, w, BLOCKS, BLOCK_SIZE, 16, pool)
            for w in (weights, InMemoryWeights(graph, read_weights(graph)))
        )
        got, expected = (e.wait(e.submit(inputs, None)).values for e in (mapped, memory))
        np.testing.assert_array_equal(got, expected)
    pool.close()


def test_a_half_written_file_never_appears(tmp_path):
    graph = build(FEATURES)
    broken = Tensors(read_weights(graph), fails_after=3)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        packed_weights(graph, broken, tmp_path)
    assert list(tmp_path.iterdir()) == []
    broken.fails_after = None
    assert isinstance(packed_weights(graph, broken, tmp_path), PackedWeights)


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    (tmp_path / f"{PARTIAL}left").write_bytes(b"half")
    (tmp_path / "notes").write_text("not ours")
    graph = build(FEATURES)
    source = read_weights(graph)
    in_use = _partial_file(tmp_path)

    def read(name: str) -> np.ndarray:
        assert len(list(tmp_path.glob(f"{PARTIAL}*"))) == 2, "the one in use and our own"
        assert not list(tmp_path.glob("*.packed")), "nothing has its name before it is whole"
        return source(name)

    packed = packed_weights(graph, Tensors(read), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "notes",
        packed.path.name,
        Path(in_use.name).name,
    }
    in_use.close()


def test_two_that_pack_at_once_do_not_harm_each_other(tmp_path):
    """The other process finishes while this one reads its first tensor."""
    graph = build(FEATURES)
    source = read_weights(graph)
    others: list[PackedWeights] = []

    def read(name: str) -> np.ndarray:
        if not others:
            others.append(packed_weights(graph, Tensors(source), tmp_path))
        return source(name)

    mine = packed_weights(graph, Tensors(read), tmp_path)
    for spec in graph.weights():
        assert equal(mine[spec.name], others[0][spec.name])
    assert list(tmp_path.iterdir()) == [mine.path]


def test_a_cache_that_cannot_be_written_is_the_users_to_mend(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    graph = build(FEATURES)
    with pytest.raises(UserError, match=r"cannot write packed weights to .*set COREPIPE_CACHE"):
        packed_weights(graph, Tensors(read_weights(graph)), blocked / "packed")


def damaged_index(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """Returns a file whose index was changed and given a valid checksum."""

    def damage(data: bytes) -> bytes:
        index = json.loads(data[packed_index.HEAD_BYTES : ALIGNMENT].rstrip(b"\0"))
        change(index)
        body = json.dumps(index).encode()
        sizes = len(body).to_bytes(8, "little") + zlib.crc32(body).to_bytes(4, "little")
        head = packed_index.MAGIC + sizes + body
        return head + bytes(ALIGNMENT - len(head)) + data[ALIGNMENT:]

    return damage


def head_entry(**values: object) -> Callable[[bytes], bytes]:
    return damaged_index(lambda index: index["tensors"]["head.weight"].update(values))


def flipped(at: int) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[at] ^= 1
        return bytes(changed)

    return damage


DAMAGES = [
    pytest.param(lambda data: b"", "empty", id="nothing"),
    pytest.param(lambda data: bytes(len(data)), "not a file of packed weights", id="zeros"),
    pytest.param(lambda data: data[:-1], "bytes, not", id="a byte short"),
    pytest.param(lambda data: data[:100], "checksum of its index is wrong", id="the head alone"),
    pytest.param(lambda data: data + b"x", "bytes, not", id="a byte long"),
    pytest.param(flipped(40), "checksum of its index is wrong", id="index"),
    pytest.param(flipped(17), "checksum of its index is wrong", id="length"),
    pytest.param(flipped(ALIGNMENT), "the checksum of .* is wrong", id="the first bit"),
    pytest.param(flipped(-1), "the checksum of .* is wrong", id="the last bit"),
    pytest.param(head_entry(kind="fp32"), "head.weight is stored as", id="kind"),
    pytest.param(head_entry(kind="int3"), "Invalid enum value", id="no kind"),
    pytest.param(head_entry(shape=[1 << 40, 64]), "head.weight is stored as", id="shape"),
    pytest.param(head_entry(data=[ALIGNMENT, 1 << 50]), "head.weight is stored as", id="bytes"),
    pytest.param(head_entry(data=[-4096, 20480]), "has the invalid offset -4096|is stored as", id="before"),
    pytest.param(head_entry(data=["0", None]), "Expected", id="types"),
    pytest.param(head_entry(scale=[1 << 60, 640]), "has the invalid offset", id="beyond the end"),
    pytest.param(head_entry(scale=[ALIGNMENT + 4, 640]), "has the invalid offset", id="between"),
    pytest.param(head_entry(scale=None), "is stored as", id="no scale"),
    pytest.param(damaged_index(lambda i: i["tensors"].pop("head.weight")), "other weights", id="missing"),
    pytest.param(damaged_index(lambda i: i.update(lookups=-1)), "embedding tables", id="lookups"),
    pytest.param(damaged_index(lambda i: i.update(more=1)), "unknown field", id="more"),
    pytest.param(damaged_index(lambda i: i.pop("tensors")), "tensors", id="less"),
]


@pytest.mark.parametrize(("damage", "says"), DAMAGES)
def test_a_damaged_file_is_noticed_and_made_anew(tmp_path, damage, says):
    graph = build(FEATURES, "int8")
    checkpoint, told = Tensors(read_weights(graph)), list[str]()
    path = packed_weights(graph, checkpoint, tmp_path).path
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.raises(ValueError, match=says):
        PackedWeights(path, graph)
    packed_weights(graph, checkpoint, tmp_path, lambda what, _done: told.append(what))
    assert path.read_bytes() == whole
    assert told[0].startswith(f"packed weights are damaged and are packed again: {path} (")
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_mapped_stays_when_the_file_is_replaced(tmp_path):
    graph = build(FEATURES, "int8")
    source = read_weights(graph)
    mapped, expected = packed_weights(graph, Tensors(source), tmp_path), InMemoryWeights(graph, source)
    other = tmp_path / "other"
    other.write_bytes(bytes(100))
    other.replace(mapped.path)
    packed_weights(graph, Tensors(source), tmp_path)
    for spec in graph.weights():
        assert equal(mapped[spec.name], expected[spec.name])


def test_leftovers_are_removed_though_nothing_is_packed(tmp_path):
    graph = build(FEATURES)
    path = packed_weights(graph, Tensors(read_weights(graph)), tmp_path).path
    (tmp_path / f"{PARTIAL}left").write_bytes(b"half")
    packed_weights(graph, Tensors(read_weights(graph)), tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_other_users_may_read_it(tmp_path):
    graph = build(FEATURES)
    path = packed_weights(graph, Tensors(read_weights(graph)), tmp_path).path
    assert path.stat().st_mode & 0o777 == 0o644


SHARDS = [
    pytest.param(((32, 64),), ((64, 64),), id="whole panels: a view"),
    pytest.param(((64, 96),), ((0, 200),), id="rows to the end"),
    pytest.param(((0, 160),), ((128, 72),), id="columns to the end"),
    pytest.param(((16, 64),), ((64, 64),), id="rows within a panel"),
    pytest.param(((32, 64),), ((40, 64),), id="columns within a group"),
    pytest.param(((96, 32), (0, 32)), ((0, 200),), id="two ranges"),
    pytest.param(((32, 32), (PAD, 32)), ((128, 64), (PAD, 64)), id="padding"),
]


@pytest.mark.parametrize(("n_ranges", "k_ranges"), SHARDS)
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_shard_is_the_same_as_a_view_or_packed_anew(fmt, n_ranges, k_ranges):
    """A core's part of a [160, 200] matrix is the same as that part cut from the weights and packed."""
    spec = WeightSpec("w", (vocabulary(160), hidden(200)), WeightRole.MATRIX)
    weight = np.random.default_rng(1).standard_normal(spec.shape).astype(np.float32)
    n_axis, k_axis = AxisShard(n_ranges), AxisShard(k_ranges)
    tensor = pack(spec, FORMATS[fmt], weight)
    stored = packing.unpack(tensor.kind, tensor.data, *spec.shape)
    part = np.asarray(cut(stored, (n_axis, k_axis)))
    scale = None if tensor.scale is None else np.asarray(cut(tensor.scale, (n_axis,)))
    own = native().Matrix(tensor.kind, packing.pack(tensor.kind, part), scale, *part.shape)
    noise = np.random.default_rng(2).standard_normal((5, k_axis.width))
    x = round_to(noise.astype(np.float32), FORMATS[fmt].compute)
    got = product(bind_matrix(tensor, n_axis, k_axis), x, fmt)
    np.testing.assert_array_equal(got, product(own, x, fmt))
    reference = linear(x, part if scale is None else Int8(part, scale), None, FORMATS[fmt])
    np.testing.assert_allclose(got, reference, rtol=2.0**-7, atol=1e-5 * np.abs(reference).max())


def product(matrix: Any, x: np.ndarray, fmt: str) -> np.ndarray:
    """Returns x times a native matrix: [len(x), n]."""
    program = native().Program([matrix.k, matrix.n, matrix.n], len(x), fmt != "fp32")
    program.embed(0, x)
    program.linear(0, [(matrix, None, 1)])
    program.select_rows(1, 2)
    found: np.ndarray = one_step([program], len(x), 2, threads=1)["values"]
    return found
