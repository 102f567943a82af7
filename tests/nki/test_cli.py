"""`corepipe nki` from outside: what it prints of kernels in either dialect."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from corepipe.cli.nki import Target
from corepipe.nki.run.simulate import GENERATIONS
from tests.nki.kernels import CURRENT, GRID, LEGACY, REFERENCE, SPEAKING, written
from tests.perfetto_reader import read
from tests.servers import run

BYTES = 128 * 512 * 4

FIELDS = {
    "file", "entry", "target", "inputs", "inputs_digest", "outputs", "check", "latency_us", "low_us",
    "high_us", "frame_us", "known", "bound", "advice", "engines", "lines", "memory", "traffic", "findings",
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("kernels")
    texts = {"legacy": LEGACY, "current": CURRENT, "speaking": SPEAKING}
    return {name: written(folder, f"{name}.py", text + REFERENCE) for name, text in texts.items()}


def reported(*arguments: object) -> dict[str, Any]:
    done = run("nki", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_targets_are_those_that_can_be_simulated() -> None:
    assert [target.value for target in Target] == sorted(GENERATIONS, key=[*Target].index)


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("dialect", ["legacy", "current"])
def test_a_kernel_is_run_timed_and_checked(files: dict[str, str], dialect: str, target: str) -> None:
    file = files[dialect]
    found = reported(file, "--target", target, "--check", f"{file}:reference", "--tolerance", "1e-6")
    (kernel,) = found["kernels"]
    assert (found["emulated"], set(kernel), found["compared_with_first"]) == (True, FIELDS, [])
    assert kernel["inputs"] == [{"name": "x", "shape": [128, 512], "dtype": "float32", "value": None}]
    assert kernel["outputs"][0]["shape"] == [128, 512]
    assert 0 < kernel["low_us"] <= kernel["latency_us"] <= kernel["high_us"]
    assert kernel["traffic"] == {"read": BYTES, "written": BYTES, "spilled": 0, "reloaded": 0}
    assert [one["engine"] for one in kernel["engines"]] == ["tensor", "vector", "scalar", "gpsimd", "dma"]
    assert kernel["memory"]["sbuf_limit"] >= kernel["memory"]["sbuf_peak"] >= 512 * 4
    assert kernel["memory"]["sbuf_largest"][0]["bytes"] == 512 * 4
    assert kernel["check"]["passed"]
    assert kernel["check"]["difference"]["max_rel_error"] <= 1e-6
    assert kernel["findings"] == []


def test_lines_stand_beside_their_source(files: dict[str, str]) -> None:
    (kernel,) = reported(files["legacy"])["kernels"]
    text = Path(files["legacy"]).read_text().splitlines()
    assert {line["source"] for line in kernel["lines"]} >= {"tile = nl.load(x[rows, columns])"}
    assert all(line["source"] == text[line["line"] - 1].strip() for line in kernel["lines"])
    assert sum(line["share"] for line in kernel["lines"]) == pytest.approx(1)
    assert kernel["lines"] == sorted(kernel["lines"], key=lambda line: -line["busy_us"])


def test_the_time_is_the_same_without_values(files: dict[str, str]) -> None:
    with_values, without = (reported(files["legacy"], *more)["kernels"][0] for more in ((), ("--no-values",)))
    assert without["latency_us"] == with_values["latency_us"]
    assert without["outputs"] == []


def test_shapes_are_inputs_as_well(files: dict[str, str]) -> None:
    (kernel,) = reported(files["current"], "--inputs", "64x256:bfloat16,factor=3.0")["kernels"]
    assert [one["name"] for one in kernel["inputs"]] == ["x", "factor"]
    assert kernel["outputs"][0] == {
        "name": "output 0",
        "shape": [64, 256],
        "dtype": "bfloat16",
        "value": None,
    }


def test_a_grid_of_programs(tmp_path: Path) -> None:
    file = written(tmp_path, "grid.py", GRID + REFERENCE)
    found = reported(file, "--grid", "4", "--check", f"{file}:reference")
    assert found["kernels"][0]["check"]["passed"]
    assert run("nki", file, "--grid", "2", "--check", f"{file}:reference").returncode == 3


def test_kernels_side_by_side(files: dict[str, str]) -> None:
    found = reported(files["legacy"], files["current"])
    first, second = found["kernels"]
    (compared,) = found["compared_with_first"]
    assert first["inputs_digest"] == second["inputs_digest"]
    assert compared["times_as_fast"] == first["latency_us"] / second["latency_us"]
    assert (compared["max_abs_error"], compared["problem"]) == (0, None)
    shown = run("nki", f"{files['legacy']}:scaled", files["current"]).stdout
    assert shown.splitlines()[1].split() == ["legacy.py", "current.py"]


def test_kernels_of_different_inputs_are_not_compared(files: dict[str, str], tmp_path: Path) -> None:
    other = written(tmp_path, "other.py", (CURRENT + REFERENCE).replace("512", "256"))
    (compared,) = reported(files["legacy"], other)["compared_with_first"]
    assert (compared["max_abs_error"], compared["problem"][:17]) == (None, "the inputs differ")


def test_the_report_in_words(files: dict[str, str]) -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    done = run("nki", files["speaking"], "--lines", "2", env=environment)
    assert (done.returncode, done.stderr) == (0, "a kernel says something\n")
    assert done.stdout.isascii()
    for part in (
        "(emulated)",
        "x 128x512 float32",
        "VectorE",
        "GpSimd",
        "SBUF",
        "nothing spilled",
        "nl.load(",
    ):
        assert part in done.stdout
    assert [line for line in done.stdout.splitlines() if "nl.ndarray" in line] == []


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--check", "{file}:wrong"], "not the outputs of {file}:wrong: largest error 0.5, relative"),
        (["--max-us", "0.5"], "us, more than --max-us 0.5"),
    ],
)
def test_a_condition_that_is_not_met_is_exit_code_3(
    files: dict[str, str], flags: list[str], says: str
) -> None:
    file = files["legacy"]
    done = run("nki", file, *(flag.format(file=file) for flag in flags))
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert says.format(file=file) in done.stderr
    assert "VectorE" in done.stdout


def test_conditions_that_are_met(files: dict[str, str]) -> None:
    file = files["legacy"]
    assert run("nki", file, "--check", f"{file}:reference", "--max-us", "1e6").returncode == 0


def test_the_timeline_is_a_trace(files: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "kernel.pftrace"
    done = run("nki", files["legacy"], "--trace", str(path))
    assert f"{path}: open it at https://ui.perfetto.dev" in done.stdout
    names = {piece.name for track in read(path).values() for piece in track.slices}
    assert names >= {"dma_copy", "tensor_scalar"}
