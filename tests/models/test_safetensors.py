"""Safetensors: values as written by the library, hostile headers refused before anything is allocated."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.checkpoints import safetensors
from corepipe.models.checkpoints.safetensors import INDEX, MAX_HEADER_BYTES, SafetensorsCheckpoint
from corepipe.neuron.formats import FORMATS
from tests.parity.families import TINY


def write(path: Path, header: object, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def tensor(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_values_are_widened_exactly(tmp_path: Path, dtype: type) -> None:
    values = np.random.default_rng(1).standard_normal((5, 7)).astype(dtype)
    save_file({"a": values, "b": values[0].copy()}, tmp_path / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(tmp_path)
    got = checkpoint.read("a")
    assert (got.dtype, got.flags.c_contiguous, checkpoint.shape("b")) == (np.float32, True, (7,))
    np.testing.assert_array_equal(got, values.astype(np.float32))


def test_other_dtypes_are_refused_only_when_read(tmp_path: Path) -> None:
    save_file({"a": np.zeros(3, np.int64), "b": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(tmp_path)
    assert checkpoint.read("b").tolist() == [1, 1]
    with pytest.raises(UserError, match="tensor a is I64; known: F32, F16, BF16"):
        checkpoint.read("a")


@pytest.mark.parametrize(
    ("header", "data", "why"),
    [
        (b"{,", b"", "not valid JSON"),
        (b"[]", b"", "must be a JSON object"),
        (b'{"a": 1}', b"", "not described by an object"),
        (b'{"a": {}, "a": {}}', b"", "a key appears twice"),
        ({"a": tensor("F12")}, bytes(8), "has dtype 'F12'"),
        ({"a": tensor(["F32"])}, bytes(8), "has dtype"),
        ({"a": tensor(shape=(-2,))}, bytes(8), "has shape"),
        ({"a": tensor(shape=(1 << 40, 1 << 40))}, bytes(8), "needs"),
        ({"a": tensor(shape=(True, 2))}, bytes(8), "has shape"),
        ({"a": tensor(shape="22")}, bytes(8), "has shape"),
        ({"a": tensor(offsets=(8, 0))}, bytes(8), "needs 8 bytes, its offsets span -8"),
        ({"a": tensor(offsets=(0, 8, 16))}, bytes(8), "data_offsets"),
        ({"a": tensor(shape=(1,))}, bytes(8), "needs 4 bytes, its offsets span 8"),
        ({"a": tensor(offsets=(4, 12))}, bytes(12), "starts at byte"),
        ({"a": tensor(), "b": tensor()}, bytes(8), "starts at byte"),
        ({"a": tensor(), "b": tensor(offsets=(4, 12))}, bytes(12), "starts at byte"),
        ({"a": tensor()}, bytes(7), "truncated"),
        ({"a": tensor("F32", (1 << 61, 8), (0, 0))}, b"", "needs"),
        ({"a": tensor(offsets=(1 << 62, (1 << 62) + 8))}, bytes(8), "data_offsets"),
        ({"a": tensor(shape=[1] * 9)}, bytes(8), "has shape"),
        ({"a" * 1025: tensor()}, bytes(8), "a name of 1025 characters"),
        ({"a\n\x1b[2J": 1}, b"", r"tensor a\\n\\x1b\[2J is not described"),
        ({"__metadata__": {"format": 1}}, b"", "__metadata__ must be"),
        ({"__metadata__": []}, b"", "__metadata__ must be"),
        ('{"a": 1}'.encode("utf-16"), b"", "not valid JSON"),
        (b"[" * 100_000, b"", "not valid JSON"),
        (
            b'{"a": {"dtype": "F32", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 8]}}',
            b"",
            "not valid",
        ),
        ({"a": tensor()}, bytes(9), "1 bytes after the last tensor"),
    ],
)
def test_hostile_headers_are_refused(tmp_path: Path, header: object, data: bytes, why: str) -> None:
    write(tmp_path / "model.safetensors", header, data)
    with pytest.raises(UserError, match=why) as caught:
        SafetensorsCheckpoint(tmp_path)
    assert "model.safetensors" in caught.value.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        b"\xff" * 8 + b"{}",
        (1 << 63).to_bytes(8, "little") + b"{}",
        (1 << 40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{",
    ],
)
def test_impossible_header_lengths_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(UserError, match="not a safetensors file"):
        SafetensorsCheckpoint(tmp_path)


def test_a_header_of_more_than_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        file.truncate(2 * MAX_HEADER_BYTES)
    with pytest.raises(UserError, match=f"header of {MAX_HEADER_BYTES + 1} bytes"):
        SafetensorsCheckpoint(tmp_path)


def test_a_file_of_nothing_but_tensors_names_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors, "MAX_TENSORS", 3)
    write(tmp_path / "model.safetensors", {f"t{i}": tensor(shape=(0,), offsets=(0, 0)) for i in range(4)})
    with pytest.raises(UserError, match="lists 4 tensors, more than 3"):
        SafetensorsCheckpoint(tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3.4e38])
def test_a_weight_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    values = np.ones((3, 5), np.float32)
    values[1, 2] = value
    save_file({"fine": np.ones(3, np.float32), "bad.weight": values}, tmp_path / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(tmp_path)
    checkpoint.read("fine")
    with pytest.raises(UserError, match=r"model\.safetensors: tensor bad\.weight holds .*damaged"):
        checkpoint.read("bad.weight")


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, 3000), value=st.binary(min_size=1, max_size=6))
def test_a_damaged_header_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp()
    data = bytearray((TINY / "qwen3" / "model.safetensors").read_bytes())
    data[at : at + len(value)] = value
    (folder / "model.safetensors").write_bytes(data)
    with suppress(UserError):
        checkpoint = SafetensorsCheckpoint(folder / "model.safetensors")
        for name in checkpoint.names():
            checkpoint.read(name)


@pytest.mark.parametrize(
    ("owners", "why"),
    [
        ({"a": "../model.safetensors"}, "not at a .safetensors file beside it"),
        ({"a": "/etc/passwd"}, "not at a .safetensors file beside it"),
        ({"a": "model.bin"}, "not at a .safetensors file beside it"),
        ({"a": 3}, "not at a .safetensors file beside it"),
        ({"a": "gone.safetensors"}, "gone.safetensors is missing"),
        ({"c": "one.safetensors"}, "tensor c is missing"),
        ({"a": "two.safetensors", "b": "one.safetensors"}, "tensor a is missing"),
        ({"a": "one.safetensors", "c": "three.safetensors"}, r"tensor a is also in one\.safetensors"),
        ({}, "weight_map is missing"),
        (["a"], "weight_map is missing"),
    ],
)
def test_an_index_cannot_point_elsewhere(tmp_path: Path, owners: object, why: str) -> None:
    for file, names in (("one", "a"), ("two", "b"), ("three", "ac")):
        save_file({name: np.zeros(2, np.float32) for name in names}, tmp_path / f"{file}.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": owners}))
    with pytest.raises(UserError, match=why):
        SafetensorsCheckpoint(tmp_path)


def test_a_file_that_shrinks_meanwhile_is_an_error_not_a_crash(tmp_path: Path) -> None:
    save_file({"a": np.zeros(1000, np.float32)}, tmp_path / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:500])
    with pytest.raises(UserError, match="truncated: tensor a needs 1000 elements"):
        checkpoint.read("a")


def test_the_fingerprint_follows_the_file(tmp_path: Path) -> None:
    save_file({"a": np.zeros(4, np.float32)}, tmp_path / "model.safetensors")
    first = SafetensorsCheckpoint(tmp_path).fingerprint
    assert SafetensorsCheckpoint(tmp_path / "model.safetensors").fingerprint == first
    os.utime(tmp_path / "model.safetensors", ns=(1, 1))
    assert SafetensorsCheckpoint(tmp_path).fingerprint != first


def test_a_whole_file_goes_before_an_index(tmp_path: Path) -> None:
    """The index is of an earlier state: as in transformers, its files are not looked at."""
    shutil.copytree(TINY / "llama2", tmp_path / "model")
    whole, index = SafetensorsCheckpoint(tmp_path / "model"), tmp_path / "model" / INDEX
    for owners in (dict.fromkeys(whole.names(), "model-00001-of-00002.safetensors"), {}, 5):
        index.write_text(json.dumps({"weight_map": owners}))
        assert set(SafetensorsCheckpoint(tmp_path / "model").names()) == set(whole.names())
        model = registry.load(tmp_path / "model")
        model.check(model.graph(FORMATS["fp32"]))
