"""Tests of the cells of a row, and of files of rows."""

from __future__ import annotations

import pytest

from corepipe.errors import UserError
from corepipe.neuron.formats import DType
from corepipe.planning.calibration import rows
from corepipe.planning.calibration.rows import RowDegrees, Unpredictable


@pytest.mark.parametrize(
    ("cell", "weights", "activations", "compute"),
    [
        ("bf16", "bf16", "bf16", "bf16"),
        ("fp16", "fp16", "fp16", "fp16"),
        ("fp32", "fp32", "fp32", "fp32"),
        ("fp32+matmult-bf16", "bf16", "bf16", "fp32"),
        ("fp16+matmult-bf16+w:bf16", "bf16", "bf16", "fp16"),
        ("fp16+matmult-bf16+w:int8", "int8", "bf16", "fp16"),
        ("int8", "int8", "int8", "bf16"),
        ("bf16+w:f8e4m3", "fp8_e4m3", "bf16", "bf16"),
    ],
)
def test_number_formats(cell, weights, activations, compute):
    found = rows.number_format({"dtype": cell})
    assert (found.weights, found.activations, found.compute) == (
        DType(weights), DType(activations), DType(compute),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("TP8xDP3", RowDegrees(tensor=8, data=3)),
        ("pp16", RowDegrees(pipeline=16)),
        ("TP=4", RowDegrees(tensor=4)),
        ("DP2,TP12", RowDegrees(tensor=12, data=2)),
        ("TP8xEP8", RowDegrees(tensor=8, expert=8)),
        ("", RowDegrees()),
    ],
)
def test_parallelism(cell, found):
    assert rows.degrees({"parallelism": cell}) == found


def test_inputs():
    assert rows.input_tokens({"input_len": "128"}) == 128
    assert rows.input_tokens({"input_len": "224x224"}) == (224, 224)
    assert rows.input_tokens({}) == 0
    assert rows.count({"batch_size": "4.0"}, "batch_size") == 4
    assert rows.number({"rate": " 0.5 "}, "rate") == 0.5
    assert rows.number({}, "rate") is None


@pytest.mark.parametrize("cell", ["x", "-1", "1.5", "inf", "1e30", "nan"])
def test_what_is_no_count(cell):
    with pytest.raises(Unpredictable, match="whole number"):
        rows.count({"batch_size": cell}, "batch_size")


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n"])
def test_what_is_no_file_of_rows(tmp_path, content):
    file = tmp_path / "rows.csv"
    file.write_text(content)
    with pytest.raises(UserError, match=r"empty|lacks the column"):
        rows.read(file)


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        rows.read(tmp_path / "no.csv")
