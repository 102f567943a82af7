"""`corepipe predict`, `corepipe validate` and `corepipe fit` on a small file, from end to end."""

from __future__ import annotations

import csv
import json

import pytest
from typer.testing import CliRunner

from corepipe.cli.app import app
from corepipe.errors import UserError

ROW = {
    "instance": "inf2.48xlarge",
    "model": "llama-3.1-8b",
    "task": "text-generation",
    "dtype": "bf16",
    "parallelism": "TP8",
    "batch_size": "1",
    "input_len": "512",
    "output_len": "64",
    "metric": "tpot",
    "value": "12.5",
    "unit": "ms",
    "percentile": "p50",
    "sdk": "2.22",
    "seq_len": "1024",
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(ROW))
        writer.writeheader()
        writer.writerows([ROW, ROW | {"batch_size": "16", "value": "20"}, ROW | {"task": "guessing"}])
    return path


def run(*args: object) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_predict_writes_the_same_rows(file, tmp_path):
    out = tmp_path / "out.csv"
    run("predict", file, "-o", out)
    with out.open(newline="") as read:
        rows = list(csv.DictReader(read))
    assert {name: rows[0][name] for name in ROW} == ROW
    assert list(rows[0]) == [*ROW, "predicted", "otherwise", "low", "high", "basis", "reason"]
    assert 5 < float(rows[0]["predicted"]) < float(rows[1]["predicted"]) < 50
    assert rows[2]["predicted"] == ""
    assert rows[2]["reason"].startswith("no runtime profile is known for the task 'guessing'")
    again = tmp_path / "again.csv"
    run("predict", out, "-o", again)
    assert again.read_text() == out.read_text()


def written(tmp_path, rows):
    path = tmp_path / "given.csv"
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{name: cell for name, cell in ROW.items() if name != "unit"}], "lacks the column unit"),
        ([ROW | {"unit": ""}] * 2, "no row can be predicted, for its column unit: unit is missing"),
        ([ROW | {"unit": "furlongs"}, ROW | {"unit": ""}], "its column unit"),
        ([ROW | {"batch_size": "many"}] * 3, "its column batch_size: batch_size must be a whole number"),
        ([ROW | {"percentile": "best"}], "its column percentile"),
        ([ROW | {"instance": "inf9.huge"}], "its column instance"),
    ],
)
def test_a_file_with_a_column_that_no_row_has_right_is_refused(tmp_path, rows, said):
    out = tmp_path / "out.csv"
    result = CliRunner().invoke(app, ["predict", str(written(tmp_path, rows)), "-o", str(out)])
    assert isinstance(result.exception, UserError)
    assert said in str(result.exception)
    assert not out.exists()


def test_single_rows_with_bad_cells_are_counted(tmp_path):
    rows = [ROW, ROW | {"unit": ""}, ROW | {"unit": "furlongs"}, ROW | {"batch_size": "-1"}]
    out = tmp_path / "out.csv"
    result = CliRunner().invoke(app, ["predict", str(written(tmp_path, rows)), "-o", str(out)])
    assert result.exit_code == 0
    assert "1 of 4 rows are predicted" in result.stderr
    assert "  1 with software profile nxdi pads prompts and contexts to powers of two," in result.stderr
    assert "3 rows have a cell that cannot be used: unit (2), batch_size (1)" in result.stderr
    with out.open(newline="") as read:
        reasons = [row["reason"] for row in csv.DictReader(read)]
    assert reasons[0] == ""
    assert reasons[1].startswith("unit is missing; there are ms")


def test_validate_scores_cell_by_cell(file):
    table = run("validate", file)
    assert "tpot" in table
    assert "2 of 3 rows are predicted" in table
    document = json.loads(run("validate", file, "--json"))
    assert document["emulated"] is True
    assert (document["rows"], document["not_predicted"]) == (3, 1)
    (cell,) = document["cells"]
    assert (cell["metric"], cell["profile"], cell["n"]) == ("tpot", "nxdi", 2)
    assert 0 <= cell["median"] < cell["roofline_median"]
    assert document["cross_validation"]
    assert document["left_out"]["decisions"]["apart"]["pairs"] > 100
    every, decode = document["intervals"]["coverage"]
    assert (every["runs"], decode["kind"], decode["runs"]) == (2, "decode", 2)
    apart, overlapping = (document["intervals"]["decisions"][name] for name in ("apart", "overlapping"))
    assert apart["pairs"] + overlapping["pairs"] == 1


def test_fit_writes_a_profile_that_commands_take(file, tmp_path):
    profile = tmp_path / "mine.json"
    run("fit", file, "-o", profile, "--profile", "nxdi")
    before, after = (
        json.loads(run("validate", file, "--json", "--profile", name))["cells"][0]["median"]
        for name in ("nxdi", profile)
    )
    assert after < before


def test_what_is_wrong_is_said(file, tmp_path):
    empty = tmp_path / "empty.csv"
    empty.write_text("model,instance,metric\n")
    for args in (
        ["predict", tmp_path / "no.csv", "-o", tmp_path / "out.csv"],
        ["predict", file, "-o", tmp_path / "out.csv", "--profile", "no-such"],
        ["fit", empty, "-o", tmp_path / "mine.json"],
        ["fit", file, "-o", tmp_path / "mine.json", "--profile", "no-such"],
    ):
        result = CliRunner().invoke(app, [str(arg) for arg in args])
        assert isinstance(result.exception, UserError)


VLLM = {
    "model_id": "llama-3.1-8b",
    "request_rate": "inf",
    "max_concurrency": 4,
    "completed": 40,
    "num_prompts": 40,
    "total_input_tokens": 20480,
    "total_output_tokens": 2560,
    "request_throughput": 3.0,
    "output_throughput": 192.0,
    "median_ttft_ms": 150.0,
    "median_tpot_ms": 17.0,
    "mean_itl_ms": 17.0,
    "mean_e2el_ms": 1300.0,
}


def test_fit_takes_a_load_test_and_narrows_its_intervals(tmp_path):
    result, profile = tmp_path / "vllm.json", tmp_path / "mine.json"
    result.write_text(json.dumps(VLLM))
    deployed = ("--instance", "inf2.48xlarge", "--tensor", "8", "--max-num-seqs", "4")
    shown = run("fit", result, "-o", profile, "--profile", "optimum-nxdi", *deployed)
    assert "interval" in shown
    assert "first token, under load" in shown
    written = json.loads(profile.read_text())
    assert written["base"] == "optimum-nxdi"
    assert all(0 < share <= 1 for share in written["narrowed"].values())
    assert any(share < 1 for share in written["narrowed"].values())
    assert any(one["decodes"] and one["weight"] for one in written["scales"]["learnt"])


def test_fit_refuses_rows_that_cannot_be_and_says_which(file, tmp_path):
    bad = tmp_path / "bad.csv"
    with bad.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(ROW))
        writer.writeheader()
        writer.writerows([ROW, ROW | {"unit": ""}, ROW | {"value": "-1"}, ROW | {"value": "0.001"}])
    result = CliRunner().invoke(
        app, ["fit", str(bad), "-o", str(tmp_path / "mine.json"), "--profile", "nxdi"]
    )
    assert result.exit_code == 0
    told = [line for line in result.stderr.splitlines() if line.startswith("refused")]
    assert [line.split("row ")[1].split(":")[0] for line in told] == ["2", "3", "4"]
    assert "data sheet" in told[2]


def test_the_scoreboard_has_our_errors_beside_those_of_others():
    errors = json.loads(run("validate", "--scoreboard", "--json"))["errors"]
    assert {"corepipe", "BLIS", "Vidur"} <= {one["predictor"] for one in errors}
    table = run("validate", "--scoreboard")
    assert all(word in table for word in ("first token", "17.6", "left out"))
    with pytest.raises(UserError, match="--scoreboard"):
        run("validate")


def test_runs_that_contradict_themselves_are_named_and_not_counted(tmp_path):
    batch = ROW | {"task": "text-generation", "sdk": "2.22", "batch_size": "1", "config_id": "x"}
    batch |= {"input_len": "512", "output_len": "129", "percentile": "mean"}
    values = {"ttft": ("100", "ms"), "tpot": ("10", "ms"), "output_throughput": ("40", "tokens/s")}
    rows = [batch | {"metric": name, "value": value, "unit": unit} for name, (value, unit) in values.items()]
    good = batch | {"metric": "tpot", "value": "10", "unit": "ms", "config_id": "y"}
    found = json.loads(run("validate", written(tmp_path, [*rows, good]), "--json"))
    assert [one["number"] for one in found["contradictory"]] == [1, 2, 3]
    assert sum(cell["n"] for cell in found["cells"]) == 1
