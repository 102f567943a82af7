from __future__ import annotations

import json
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from corepipe.cli.app import app
from corepipe.cli.run.software import ASSUMED, PROFILE, SIMULATE, GraphKind
from corepipe.models.registry import architecture
from corepipe.neuron.chips.profiles import profile
from corepipe.neuron.chips.runtime_profile import in_words
from corepipe.neuron.formats import FORMATS
from corepipe.planning.calibration.predict import Predictor
from corepipe.simulation import native_fleet, simulate
from corepipe.simulation.step_times import StepTimes
from tests.servers import run
from tests.tiny_encoders import write_bert

DRAFTS = json.dumps(
    {
        "method": "ngram",
        "num_speculative_tokens": 2,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.6, 0.3],
    }
)
SMALL = ["simulate", "llama-3.2-1b", "--requests", "40", "--input-len", "100", "--output-len", "uniform:5:30"]


def test_a_table_for_people() -> None:
    shown = run(*SMALL, "--slo", "ttft:500ms tpot:50ms")
    assert shown.returncode == 0
    for words in ("(emulated", "40 of 40", "time to first token", "goodput", "bottleneck", "$ per million"):
        assert words in shown.stdout


@pytest.mark.parametrize(
    "flags",
    [
        ["--rate", "20"],
        ["--users", "4", "--turns", "2"],
        ["--rate", "20", "--prefix-tree", "2x64", "--policy", "segregated"],
        ["--rate", "20", "--instance", "inf2.48xlarge", "--tensor", "2", "--data", "3"],
        ["--rate", "20", "--instance", "inf2.48xlarge", "--tensor", "1", "--pipeline", "4", "--data", "2"],
        ["--rate", "20", "--speculative-config", DRAFTS],
    ],
)
def test_what_generates_is_played_natively(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command builds a scenario that they can play: in the loop it would take four times as long."""
    monkeypatch.setattr(simulate, "LoopedSimulation", None)
    done = CliRunner().invoke(app, [*SMALL, *flags, "--json"])
    assert json.loads(done.stdout)["requests"]["completed"] == 40, done.output


def test_replicas_as_fast_as_each_other_share_their_steps_times(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock(wraps=StepTimes)
    monkeypatch.setattr(native_fleet, "StepTimes", asked)
    done = CliRunner().invoke(app, [*SMALL, "--instance", "inf2.48xlarge", "--data", "12", "--rate", "20"])
    assert done.exit_code == 0
    assert asked.call_count == 1


def test_a_trace_is_written_played_and_plotted(tmp_path: Path) -> None:
    trace, plot = tmp_path / "trace.csv", tmp_path / "plot.html"
    made = run(*SMALL, "--rate", "5", "--write-trace", str(trace), "--trace-format", "burstgpt")
    assert (made.returncode, made.stdout) == (0, "")
    shown = run("simulate", "llama-3.2-1b", "--trace", str(trace), "--json", "--plot", str(plot))
    assert json.loads(shown.stdout)["workload"]["schema"] == "burstgpt"
    assert plot.read_text().startswith("<!doctype html>")


def test_images_are_requests_with_one_result() -> None:
    """Images are answered as fast as the cores allow: a batch takes the device's time, and the host's
    copies."""
    shown = run("simulate", "resnet50", "--users", "16", "--max-num-seqs", "8", "--requests", "400")
    assert shown.returncode == 0
    for words in (
        "resnet-50",
        "profile data-parallel",
        "400 of 400",
        "end to end",
        "requests/s",
        "million requests",
        "interval",
    ):
        assert words in shown.stdout
    for words in ("token", "KV cache"):
        assert words not in shown.stdout
    flags = ("--users", "1", "--requests", "9", "--json")
    image, text = (json.loads(run("simulate", name, *flags).stdout) for name in ("resnet50", "bert-base"))
    profiles = [document["deployment"]["runtime_profile"] for document in (image, text)]
    assert profiles == ["data-parallel", "traced"]
    row = {"model": "resnet50", "instance": "inf2.xlarge", "task": "cnn", "metric": "latency", "unit": "ms"}
    assert image["e2e_ms"]["p50"] == pytest.approx(Predictor().predict(row).value, rel=1e-6)
    assert (image["tpot_ms"], image["requests"]["completed"]) == (None, 9)
    low, high = text["intervals"]["e2e_ms"]["p50"]
    assert low < text["e2e_ms"]["p50"] < high


@pytest.mark.parametrize(
    ("flags", "tokens", "most"),
    [
        (("bert-base",), 512, 512),
        (("bert-base", "--max-model-len", "100"), 100, 100),
        (("bert-base", "--input-len", "128"), 128, 512),
        (("bert-base", "--input-len", "uniform:100:300"), None, 512),
        (("all-minilm-l6-v2",), 256, 256),
        (("sentence-transformers/all-MiniLM-L12-v2",), 128, 128),
        (("qwen3-0.6b", "--task", "embed"), 512, 8192),
    ],
)
def test_an_encoders_texts_are_as_long_as_its_server_takes(
    flags: tuple[str, ...], tokens: int | None, most: int
) -> None:
    """The head of the report speaks of this load."""
    load = ("--rate", "50", "--requests", "20")
    shown, document = (
        run("simulate", *flags, *load),
        json.loads(run("simulate", *flags, *load, "--json").stdout),
    )
    assert shown.returncode == 0
    assert document["requests"]["completed"] == 20
    assert document["deployment"]["max_model_len"] == most
    told = f"20 of 20 requests of {tokens} tokens answered" if tokens else "20 of 20 requests of 1"
    assert told in shown.stdout
    assert re.search(
        r"^this load: [\d.]+ ms a request, [\d,]+ requests/s at most", shown.stdout, re.MULTILINE
    )
    assert "time to first token" not in shown.stdout


def test_a_directory_has_the_limit_of_its_server(tmp_path: Path) -> None:
    folder, limit = write_bert(tmp_path / "m"), 50
    parts = ("", "Transformer"), ("1_Pooling", "Pooling")
    modules = [
        {"idx": idx, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for idx, (path, kind) in enumerate(parts)
    ]
    (folder / "1_Pooling").mkdir()
    for name, values in {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": limit, "do_lower_case": False},
    }.items():
        (folder / name).write_text(json.dumps(values))
    shown = run("simulate", str(folder), "--rate", "50", "--requests", "5")
    assert f"5 of 5 requests of {limit} tokens answered" in shown.stdout
    longer = run("simulate", str(folder), "--rate", "50", "--requests", "5", "--input-len", str(limit + 1))
    assert longer.returncode == 1
    assert f"5 were refused, as they are longer than the {limit} tokens that the model takes" in longer.stderr


@pytest.mark.parametrize(
    ("name", "objective"), [("bert-base", "e2e:1s"), ("resnet50", "ttft:1s"), ("llama-3.2-1b", "tpot:1s")]
)
def test_goodput_is_shown_of_every_kind_of_model(name: str, objective: str) -> None:
    shown = run("simulate", name, "--rate", "5", "--requests", "10", "--slo", objective)
    assert "requests/s meet the objectives: 100.0%" in shown.stdout


OVERLOADED = "and the queue grows"


@pytest.mark.parametrize(
    ("flags", "is_overloaded"),
    [
        (("bert-base", "--rate", "3000"), True),
        (("bert-base", "--rate", "200"), False),
        (("bert-base", "--rate", "300000", "--max-num-queued-reqs", "10"), True),
        (("bert-base", "--users", "100"), False),
        (("resnet50", "--rate", "50000"), True),
        (("llama-3.1-8b", "--rate", "20", "--instance", "inf2.8xlarge"), True),
        (("llama-3.1-8b", "--rate", "1", "--instance", "inf2.8xlarge"), False),
        (("llama-3.1-8b", "--users", "50", "--instance", "inf2.8xlarge"), False),
    ],
)
def test_what_is_overloaded_is_called_so(flags: tuple[str, ...], *, is_overloaded: bool) -> None:
    shown = run("simulate", *flags, "--requests", "100")
    assert (OVERLOADED in shown.stdout) is is_overloaded


@pytest.mark.parametrize("command", ASSUMED)
@pytest.mark.parametrize("name", ["llama-3.2-1b", "bert-base", "vit-base-patch16-224"])
def test_each_command_says_which_software_it_assumed_and_what_that_pads(command: str, name: str) -> None:
    kind, (verb, *flags) = GraphKind.of(architecture(name).graph(FORMATS["bf16"])), command.split()
    flags += ["--rate", "5", "--requests", "5"] if command == SIMULATE else []
    flags += ["--input-len", "197"] if (command, kind) == (PROFILE, GraphKind.IMAGES) else []
    stack = ASSUMED[command][kind]
    shown = run(verb, name, *flags).stdout
    assert f"profile {stack} {in_words(profile(stack))}; without --profile, simulate assumes " in shown
    named = run(verb, name, *flags, "--profile", "traced").stdout
    assert "profile traced pads prompts to powers of two, batches to powers of two\n" in named


@pytest.mark.parametrize(
    ("stack", "words"),
    [
        ("async", "pads nothing"),
        ("vllm-neuron", "pads prompts and contexts to powers of two, batches to all that the graph takes"),
        ("beam-search", "pads contexts to the longest sequence"),
        ("vllm-neuron-native", "batches to powers of two"),
    ],
)
def test_what_is_padded_in_words(stack: str, words: str) -> None:
    assert words in in_words(profile(stack))


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--num-blocks", "2"], "were refused, as they are too long (--max-model-len, --num-blocks)"),
        (["--max-model-len", "64"], "were refused, as they are too long"),
    ],
)
def test_where_nothing_is_answered_the_code_is_1_and_it_is_said_why(flags: list[str], why: str) -> None:
    shown = run(*SMALL, *flags, "--rate", "5")
    assert shown.returncode == 1
    assert "0 of 40 requests answered" in shown.stdout
    assert shown.stderr.splitlines()[-1].startswith("corepipe: no request was answered: 40 were refused")
    assert why in shown.stderr
    assert run(*SMALL, *flags, "--rate", "5", "--json").returncode == 1
