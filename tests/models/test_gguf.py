"""GGUF files written by the gguf library: read back, dequantised, renamed; broken ones refused."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.checkpoints import gguf_blocks
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.checkpoints.gguf_blocks import BLOCK_TYPES
from corepipe.models.checkpoints.gguf_config import config_fields
from corepipe.models.families.llama import configure
from tests.models import ggufs
from tests.parity.families import TINY

ALIGNMENT = b"general.alignment"


@pytest.mark.parametrize("number", [n for n, t in BLOCK_TYPES.items() if t.elements > 1])
def test_random_blocks_of_every_type_equal_the_library_to_the_bit(tmp_path: Path, number: int) -> None:
    """The blocks exceed one piece, follow other bytes, and include infinities and NaNs of damage."""
    kind = BLOCK_TYPES[number]
    count = gguf_blocks.PIECE + 5 * 256
    nbytes = count // kind.elements * kind.bytes
    data = np.random.default_rng(number).integers(0, 256, 10 + nbytes, dtype=np.uint8)
    data.tofile(tmp_path / "blocks")
    got = gguf_blocks.dequantise(tmp_path / "blocks", kind, count, 10, "x")
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(data[10:].reshape(-1, 256 // kind.elements * kind.bytes), Type(number))
    np.testing.assert_array_equal(got.view(np.uint32), expected.reshape(-1).view(np.uint32))


@pytest.mark.parametrize("encoding", [Type.Q4_K, Type.Q6_K, Type.IQ4_XS, Type.TQ2_0, Type.MXFP4])
def test_quantised_tensors_have_their_rows(tmp_path: Path, encoding: Type) -> None:
    """The library cannot write all of these: random blocks, with small scales so that values are finite."""
    elements, size = gguf.GGML_QUANT_SIZES[encoding]
    blocks = np.random.default_rng(3).integers(0, 256, (6, 2, size), dtype=np.uint8)
    scales = {Type.Q4_K: [0, 2], Type.Q6_K: [208], Type.IQ4_XS: [0], Type.TQ2_0: [64], Type.MXFP4: []}
    for at in scales[encoding]:
        blocks[..., at : at + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    if encoding is Type.MXFP4:
        blocks[..., 0] = 120  # an exponent
    raw = blocks.reshape(6, -1)
    write_tensors(tmp_path / "k.gguf", {"x": (raw, encoding)})
    got = GgufFile(tmp_path / "k.gguf").read("x")
    assert got.shape == (6, 2 * elements)
    np.testing.assert_array_equal(got, gguf.dequantize(raw, encoding))


def write_tensors(path: Path, tensors: dict[str, tuple[np.ndarray, Type | None]]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for name, (values, encoding) in tensors.items():
        writer.add_tensor(name, values, raw_dtype=encoding)
    ggufs.close(writer)


def unpacks(kind: Type) -> bool:
    """Tells whether the library unpacks a type."""
    try:
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def test_what_the_library_unpacks_is_read_and_the_rest_is_known_by_name() -> None:
    read = {(t.number, t.name, (t.elements, t.bytes)) for t in BLOCK_TYPES.values()}
    assert read == {(t.value, t.name, gguf.GGML_QUANT_SIZES[t]) for t in Type if unpacks(t)}
    others = {t.value: t.name for t in Type if not unpacks(t)}
    assert others.items() <= gguf_blocks.OTHERS.items()
    assert not {t.value for t in Type} & (gguf_blocks.OTHERS.keys() - others.keys())


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (9, r"tensor x is of block type 9 \(Q8_1\), which is not read \(read are F32, F16, .*NVFP4\)"),
        (28, r"tensor x is of block type 28 \(F64\)"),
        (33, r"tensor x is of block type 33 \(Q4_0_8_8\)"),
        (99, r"tensor x is of the unknown block type 99, which is not read"),
    ],
)
def test_a_block_type_that_is_not_read_is_refused_by_name_before_its_size_matters(
    tmp_path: Path, number: int, why: str
) -> None:
    """The tensor has 2**40 values that are not in the file."""
    (tmp_path / "x.gguf").write_bytes(header(1, 0, "Q1sIQIQ", 1, b"x", 1, 1 << 40, number, 0))
    with pytest.raises(UserError, match=why) as caught:
        GgufFile(tmp_path / "x.gguf")
    assert str(tmp_path / "x.gguf") in caught.value.message


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    ggufs.convert(TINY / "llama2", tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def test_a_truncated_file_is_refused_with_both_sizes(whole: Path) -> None:
    data = whole.read_bytes()
    whole.write_bytes(data[:-100])
    with pytest.raises(UserError, match=f"truncated: {len(data) - 100} bytes, the tensors need") as caught:
        GgufFile(whole)
    assert str(whole) in caught.value.message


def laid_out(path: Path, offsets: tuple[int, int], nbytes: int) -> Path:
    """Writes two tensors of 4 fp32 each at `offsets` in `nbytes` of data."""
    (a, b) = offsets
    data = header(2, 0, "Q1sIQIQ" * 2, 1, b"a", 1, 4, 0, a, 1, b"b", 1, 4, 0, b)
    path.write_bytes(data + bytes(-len(data) % 32) + bytes(nbytes))
    return path


@pytest.mark.parametrize(
    ("offsets", "nbytes", "why"),
    [
        ((0, 0), 64, "tensors a and b overlap"),
        ((32, 0), 48, None),
        ((0, 32), 64, None),
        ((0, 32), 48, None),
        ((0, 32), 47, "truncated: "),
        ((0, 32), 63, "15 bytes after the last tensor, or truncated padding"),
        ((0, 32), 65, "17 bytes after the last tensor"),
        ((0, 64), 80, "48 bytes between a and b"),
        ((0, 16), 64, "tensor b is not aligned to 32"),
    ],
)
def test_tensors_follow_each_other(
    tmp_path: Path, offsets: tuple[int, int], nbytes: int, why: str | None
) -> None:
    path = laid_out(tmp_path / "two.gguf", offsets, nbytes)
    if why is None:
        assert set(GgufFile(path).tensors) == {"a", "b"}
    else:
        with pytest.raises(UserError, match=why):
            GgufFile(path)


def test_a_scale_that_is_not_finite_is_named(whole: Path) -> None:
    file = GgufFile(whole)
    tensor = file.tensors["output_norm.weight"]
    data = bytearray(whole.read_bytes())
    data[tensor.offset : tensor.offset + 4] = struct.pack("<f", float("nan"))
    whole.write_bytes(data)
    with pytest.raises(UserError, match=r"tensor output_norm\.weight holds nan: the weights are damaged"):
        GgufFile(whole).read("output_norm.weight")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """Returns a path to write damaged files to, and the bytes of a whole one."""
    path = tmp_path_factory.mktemp("gguf") / "damaged.gguf"
    ggufs.convert(TINY / "llama2", path)
    return path, path.read_bytes()


@settings(max_examples=60, deadline=None)
@given(cut=st.floats(0, 1))
def test_every_truncation_is_a_user_error(file: tuple[Path, bytes], cut: float) -> None:
    path, data = file
    path.write_bytes(data[: int(cut * (len(data) - 64))])
    with pytest.raises(UserError, match=r"damaged\.gguf"):
        GgufFile(path)


@settings(max_examples=150, deadline=None)
@given(at=st.integers(4, 1500), value=st.binary(min_size=1, max_size=8))
def test_a_damaged_header_never_crashes(file: tuple[Path, bytes], at: int, value: bytes) -> None:
    path, data = file
    path.write_bytes(data[:at] + value + data[at + len(value) :])
    with suppress(UserError):
        registry.load(path).checkpoint.names()


def header(tensors: int, entries: int, kinds: str = "", *values: object, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack(f"<IQQ{kinds}", version, tensors, entries, *values)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"GGML" + bytes(40), "does not start with GGUF"),
        (header(0, 0, version=1), "version 1"),
        (header(0, 0, version=4), "version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian version 3"),
        (header(0, 0, version=0xFFFFFFFF), "version 4294967295"),
        (header(1 << 60, 0), "number of tensors"),
        (header(0, 1 << 60), "number of metadata entries"),
        (header(0, 1, "Q", 1 << 62), "length of a metadata key"),
        (header(0, 1, "Q1sIIQ", 1, b"k", 9, 8, 1 << 50), "length of k"),
        (header(0, 1, "Q1sIIQ", 1, b"k", 9, 0, 1 << 23) + bytes(1 << 23), "length of k"),
        (header(0, 1, "Q1sIQ", 1, b"k", 8, (1 << 24) + 1) + bytes(1 << 25), "length of"),
        (header(0, 1, "Q", 2000) + bytes(4000), "length of a metadata key"),
        (header(0, 1, "Q1sIQ1s", 1, b"k", 8, 1, b"\xff"), "not UTF-8"),
        (header(0, 2, "Q1sIB" * 2, *(1, b"k", 0, 0) * 2), "k appears twice"),
        (header(0, 1, "Q17sII", 17, ALIGNMENT, 4, 3), "general.alignment is 3, not a power of two"),
        (header(0, 1, "Q17sIB", 17, ALIGNMENT, 7, 1), "alignment is True"),
        (header(2, 0, "Q1sIQIQ" * 2, *(1, b"x", 1, 8, 0, 0) * 2), "x appears twice"),
        (header(0, 1, "Q1sI", 1, b"k", 77), "unknown type 77"),
        (header(0, 1, "Q1sIIQ", 1, b"k", 9, 9, 1), "unsupported type 9"),
        (header(1, 0, "Q1sII", 1, b"x", 9, 1), "number of dimensions"),
        (header(1, 0, "Q1sIQIQ", 1, b"x", 1, 32, 99, 0), "unknown block type 99"),
        (header(1, 0, "Q1sIQIQ", 1, b"x", 1, 33, 8, 0), "has shape"),
        (header(1, 0, "Q1sIQIQ", 1, b"x", 1, 1 << 39, 0, 0), "truncated"),
        (header(1, 0, "Q1sIQQQQIQ", 1, b"x", 4, *[1 << 40] * 4, 0, 0), "truncated"),
        (header(1, 0, "Q1sIQIQ", 1, b"x", 1, 4, 0, 1 << 60), "truncated"),
        (header(1, 0, "Q1sIQIQ", 1, b"x", 1, 4, 0, 3), "not aligned"),
    ],
)
def test_hostile_headers_are_refused_before_anything_is_allocated(
    tmp_path: Path, data: bytes, why: str
) -> None:
    (tmp_path / "bad.gguf").write_bytes(data)
    with pytest.raises(UserError, match=why):
        GgufFile(tmp_path / "bad.gguf")


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("general.architecture", "mamba", "'mamba' is not supported in .* .known: llama, qwen2, qwen3"),
        ("llama.rope.dimension_count", 6, "rope.dimension_count is 6"),
        ("llama.attention.head_count", 0, "llama.attention.head_count must be an integer from 1"),
        ("llama.rope.scaling.type", "longrope", "llama.rope.scaling.type 'longrope' is not supported"),
        ("llama.rope.scaling.factor", 4.0, "llama.rope.scaling.type is missing, though factor is given"),
    ],
)
def test_models_we_do_not_compute_are_refused_by_name(whole: Path, key: str, value: object, why: str) -> None:
    file = GgufFile(whole)
    file.metadata[key] = value
    with pytest.raises(UserError, match=why):
        configure(config_fields(file))


def test_mixtures_of_an_architecture_that_has_none_are_refused(whole: Path) -> None:
    file = GgufFile(whole)
    file.metadata |= {"general.architecture": "gemma", "gemma.expert_count": 8}
    with pytest.raises(UserError, match=r"gemma\.expert_count: mixtures of experts are not supported"):
        config_fields(file)
