"""`corepipe plan`, from the command line to what it prints."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from corepipe.cli.app import app
from tests.planning.planner.test_planner import CONFIG
from tests.servers import TINY, command, run

ASKED = ("--rate", "100", "--input-len", "uniform:100:300", "--output-len", "10", "--requests", "40")
SMALL = ("--instance", "inf2.xlarge", "--dtype", "bf16")
GUESSES = (
    '{"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "synthetic", '
    '"synthetic_acceptance_rates": [0.9, 0.8, 0.7]}'
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def test_the_choice_is_labelled_as_emulated_and_says_how_sure_it_is(model: str) -> None:
    shown = run("plan", model, *ASKED, *SMALL, "--ttft", "100ms", "--tpot", "0.01s")
    assert shown.returncode == 0
    first, second, third, apart, ttft, tpot, sure, price = shown.stdout.splitlines()[:8]
    assert first.startswith("1 x inf2.xlarge")
    assert re.search(r"0.758 \$/h \(emulated\), \S+ \$ for a million output tokens$", first)
    assert re.fullmatch(r"TTFT [\d.]+ ms of 100, TPOT [\d.]+ ms of 10 at p99", second)
    assert third.startswith("vLLM on Neuron runs it")
    assert apart == ""
    assert re.match(r"TTFT is \d+% below its objective, with a prediction error of \d+%", ttft)
    assert re.match(r"TPOT is \d+% below its objective, with a prediction error of \d+%", tpot)
    assert "p99 not validated" in sure
    assert "Neuron SDK documentation" in price


def test_the_document_is_the_same_bytes_for_the_same_seed(model: str) -> None:
    first, second = (run("plan", model, *ASKED, *SMALL, "--ttft", "100ms", "--json") for _ in range(2))
    assert first.stdout == second.stdout
    document = json.loads(first.stdout)
    assert document["emulated"] is True
    assert document["choice"]["instance"] == "inf2.xlarge"
    assert document["objectives"] == {"ttft_ms": 100.0, "tpot_ms": None, "percentile": 99.0}


def test_where_nothing_meets_them_the_code_is_3_and_the_nearest_is_named(model: str) -> None:
    shown = run("plan", model, *ASKED, *SMALL, "--ttft", "100ms", "--tpot", "0.01ms")
    assert shown.returncode == 3
    assert "Nothing meets the objectives." in shown.stdout
    assert "the nearest is inf2.xlarge" in shown.stdout
    assert re.search(r"ms would be met by \d x inf2.xlarge", shown.stdout)


@pytest.mark.parametrize("objective", [(), ("--tpot", "500ms")])
def test_without_an_objective_for_first_tokens_the_queue_does_not_grow(objective: tuple[str, ...]) -> None:
    """Two instances would do 97 % of the rate: first tokens would come later and later."""
    asked = ("--rate", "5", "--instance", "inf2.xlarge", "--dtype", "int8-weights", "--requests", "400")
    shown = run("plan", "llama-3.1-8b", *asked, *objective, "--json")
    choice = json.loads(shown.stdout)["choice"]
    assert choice["instances"] == 3
    assert choice["predicted"]["ttft_ms"] < 5000


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("llama-3.2-1b", "--instance", "inf1.xlarge"), "vLLM does not run on inf1.xlarge"),
        (("llama-3.2-1b", "--instance", "inf2.xlarge", "--dtype", "int8"), "NxD Inference has no int8"),
        (("llama-3.2-1b", "--instance", "inf2.xlarge", "--profile", "async"), "planned with async"),
        (
            ("qwen3-0.6b", "--instance", "trn2.3xlarge", "--region", "ap-southeast-4"),
            "the native plugin has no qwen3 of this kind",
        ),
        (
            ("llama-3.2-1b", "--instance", "inf2.xlarge", "--speculative-config", GUESSES),
            "vLLM on Neuron has no such speculative decoding",
        ),
    ],
)
def test_a_choice_that_no_stack_runs_is_called_so_by_the_plan(flags: tuple[str, ...], why: str) -> None:
    asked = ("--rate", "1", "--input-len", "100", "--output-len", "10", "--requests", "40")
    _, second, third = run("plan", *flags, *asked).stdout.splitlines()[:3]
    assert second.endswith(
        "without an objective (--ttft, --tpot) it is the cheapest whose queue does not grow"
    )
    assert third.startswith("no software stack runs it: ")
    assert why in third
    document = json.loads(run("plan", *flags, *asked, "--json").stdout)
    assert why in document["no_stack_runs_it"]
    assert document["commands"]["vllm"] is None


@pytest.mark.parametrize(
    ("name", "source", "before"),
    [
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B", []),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", []),
        ("Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B", ["of the shape of Llama-3.1-8B-Instruct"]),
        ("llama-3.2-1b", "/models/Llama-3.2-1B", ["hf download meta-llama/Llama-3.2-1B --local-dir "]),
        ("pythia-1b", "EleutherAI/pythia-1b", []),
    ],
)
def test_a_command_for_the_hardware_is_complete(name: str, source: str, before: list[str]) -> None:
    """A repository, or where NxD Inference loads none, a directory and how it comes there."""
    asked = ("--rate", "1", "--input-len", "100", "--output-len", "10", "--requests", "40", "--dtype", "bf16")
    flags = ("plan", name, *asked, "--instance", "inf2.xlarge")
    commands = json.loads(run(*flags, "--json").stdout)["commands"]
    words = shlex.split(commands["vllm"])
    assert words[:3] == ["vllm", "serve", source]
    assert all(any(part in line for line in commands["before_vllm"]) for part in before)
    assert bool(commands["before_vllm"]) is bool(before)
    shown = run(*flags).stdout
    doubt = "but NxD Inference is not documented to have gpt_neox: the command is below"
    assert (doubt in shown.splitlines()[2]) is (name == "pythia-1b") is bool(commands["vllm_may_not_run"])
    printed = shown[shown.index("  vllm serve") :].partition("\nto serve")[0]
    command = printed.split("--no-enable-prefix-caching")[0] + "--no-enable-prefix-caching"
    assert shlex.split(command.replace("\\\n", " ")) == words
    emitted = run(*flags, "--emit", "vllm-neuron").stdout
    workload, _ = yaml.safe_load_all(emitted)
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    assert container["args"] == words[2:]


def test_a_directory_is_named_by_its_whole_path_and_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny").symlink_to(TINY)
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "tiny")
    asked = ("--rate", "1", "--input-len", "100", "--output-len", "10", "--requests", "40")
    flags = ("plan", "tiny", *asked, "--instance", "inf2.xlarge", "--dtype", "bf16", "--emit")
    done = {
        kind: subprocess.run(command(*flags, kind), capture_output=True, text=True, check=True).stdout
        for kind in ("vllm-neuron", "helm")
    }
    workload, _ = yaml.safe_load_all(done["vllm-neuron"])
    pod = workload["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][0] == path
    assert pod["containers"][0]["volumeMounts"] == [{"name": "model", "mountPath": path}]
    assert pod["volumes"] == [{"name": "model", "hostPath": {"path": path, "type": "Directory"}}]
    values = yaml.safe_load(done["helm"])
    assert values["model"] == path
    assert values["extraVolumes"] == pod["volumes"]
    assert values["extraVolumeMounts"] == [{"name": "model", "mountPath": path, "readOnly": True}]


def test_a_measurement_that_tells_nothing_apart_is_not_asked_for(model: str) -> None:
    flags = ("plan", model, *ASKED, "--instance", "inf2.xlarge", "--ttft", "100ms", "--next-measurement")
    says = "would tell it from no other: the intervals of the others are too wide"
    shown = run(*flags).stdout
    assert "corepipe bench" not in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("--next-measurement: "))
    assert says in line
    document = json.loads(run(*flags, "--json").stdout)
    assert document["next_measurement"] is None
    assert says in document["no_measurement"]


@pytest.mark.parametrize(
    ("name", "flags", "unit"),
    [
        ("bert-base", ("--input-len", "uniform:10:200"), "requests of 1"),
        ("vit-base-patch16-224", (), "images"),
        ("resnet-50", (), "images"),
    ],
)
def test_what_generates_nothing_is_planned_and_simulated_again(
    name: str, flags: tuple[str, ...], unit: str
) -> None:
    asked = ("plan", name, "--rate", "300", *flags, "--ttft", "50ms", "--requests", "100")
    shown, document = run(*asked), json.loads(run(*asked, "--json").stdout)
    first, second, third, apart = shown.stdout.splitlines()[:4]
    choice = document["choice"]
    assert first.startswith(f"{choice['instances']} x {choice['instance']}, ")
    assert first.endswith(" $ for a million requests")
    assert re.fullmatch(rf"300 {unit}.* a second: [\d.]+ ms of 50 at p99", second)
    assert third.startswith("vLLM on Neuron does not run it")
    assert apart == ""
    assert document["emulated"] is True
    assert choice["predicted"]["e2e_ms"] <= 50
    again = json.loads(run(*shlex.split(choice["commands"]["simulate"])[1:], "--json").stdout)
    assert again["e2e_ms"]["p99"] == pytest.approx(choice["predicted"]["e2e_ms"], rel=1e-9)


def test_where_no_encoder_is_quick_enough_the_code_is_3() -> None:
    shown = run("plan", "bert-base", "--rate", "10", "--ttft", "1ms", "--instance", "inf2.xlarge")
    assert shown.returncode == 3
    assert shown.stdout.startswith("Nothing meets the objective.")
    assert "not chosen: inf2.xlarge, data 2, bf16, traced: a request alone takes" in shown.stdout


def test_emitted_values_are_all_of_stdout(model: str) -> None:
    shown = run("plan", model, *ASKED, *SMALL, "--ttft", "100ms", "--emit", "helm")
    assert shown.returncode == 0
    values = yaml.safe_load(shown.stdout)
    assert (values["instance"], values["replicas"]) == ("inf2.xlarge", 1)
    assert values["timingModel"] == model
    assert "emulated" in shown.stdout
    assert "1 x inf2.xlarge" in shown.stderr


def planned(model: str, *flags: str) -> dict[str, Any]:
    shown = run("plan", model, *ASKED, *SMALL, *flags, "--json")
    assert shown.returncode == 0, shown.stderr
    document: dict[str, Any] = json.loads(shown.stdout)
    return document


def test_its_commands_are_taken_and_simulate_gives_the_same_figures(model: str) -> None:
    """Runs the printed commands in a shell, as people do, over several lines."""
    asked = ("--ttft", "100ms", "--tpot", "10ms")
    document, text = planned(model, *asked), run("plan", model, *ASKED, *SMALL, *asked).stdout
    printed = text[text.index("  corepipe simulate") : text.index("\n", text.index("--slo"))]
    assert max(map(len, printed.splitlines())) <= 80
    words = shlex.split(printed.replace("\\\n", " "))
    assert words == shlex.split(document["commands"]["simulate"])
    again = json.loads(run(*words[1:], "--json").stdout)
    predicted = document["choice"]["predicted"]
    for figure in ("ttft", "tpot", "e2e"):
        assert again[f"{figure}_ms"]["p99"] == pytest.approx(predicted[f"{figure}_ms"], rel=1e-12)
    rate = again["throughput"]["output_tokens_per_second"]
    assert rate * document["choice"]["instances"] == pytest.approx(predicted["output_tokens_per_second"])
    serve = shlex.split(document["commands"]["serve"])
    assert serve[:3] == ["corepipe", "serve", "--timing-model"]
    context = typer.main.get_command(app).commands["serve"].make_context("serve", serve[2:])  # type: ignore[attr-defined]
    assert context.params["max_num_seqs"] == document["choice"]["max_num_seqs"]
    assert context.params["clock"].value == "device"


def test_guesses_are_chosen_where_they_are_worth_it_and_simulated_again(model: str) -> None:
    """An objective that a token alone does not meet is met by the tokens of a step; where guesses are mostly
    wrong they are left out."""
    asked = ("--ttft", "100ms", "--tpot", "10ms")
    alone = planned(model, *asked)["choice"]["predicted"]
    found = planned(model, *asked, "--speculative-config", GUESSES)
    choice, predicted = found["choice"], found["choice"]["predicted"]
    assert choice["assumed"] is True
    assert choice["speculative_config"] == json.loads(GUESSES)
    assert predicted["e2e_ms"] < alone["e2e_ms"]
    again = json.loads(run(*shlex.split(found["commands"]["simulate"])[1:], "--json").stdout)
    for figure in ("ttft", "tpot", "e2e"):
        assert again[f"{figure}_ms"]["p99"] == pytest.approx(predicted[f"{figure}_ms"], rel=1e-12)
    assert again["speculation"]["assumed"] is True
    assert "--speculative-config" in shlex.split(found["commands"]["serve"])
    wrong = GUESSES.replace("[0.9, 0.8, 0.7]", "[0.0, 0.0, 0.0]")
    assert "assumed" not in planned(model, *asked, "--speculative-config", wrong)["choice"]
    draft = Path(model).with_name("draft.json")
    draft.write_text(json.dumps({**CONFIG, "num_hidden_layers": 1}))
    more = {**json.loads(GUESSES), "method": "draft_model", "model": str(draft)}
    drafted = planned(model, *asked, "--speculative-config", json.dumps(more))
    assert drafted["choice"]["speculative_config"] == more
    again = json.loads(run(*shlex.split(drafted["commands"]["simulate"])[1:], "--json").stdout)
    assert again["e2e_ms"]["p99"] == pytest.approx(drafted["choice"]["predicted"]["e2e_ms"], rel=1e-12)
    assert again["speculation"]["draft_model_share"] > 0
    assert drafted["choice"]["predicted"]["e2e_ms"] > predicted["e2e_ms"]
    emitted = run("plan", model, *ASKED, *SMALL, *asked, "--speculative-config", GUESSES, "--emit", "helm")
    values = yaml.safe_load(emitted.stdout)
    assert json.loads(values["batching"]["speculativeConfig"]) == json.loads(GUESSES)


def test_a_margin_is_kept(model: str) -> None:
    wide, narrow = (planned(model, "--ttft", "60ms", "--tpot", "8ms", "--margin", m) for m in ("0", "40"))
    assert (wide["margin_percent"], narrow["margin_percent"]) == (0, 40)
    assert narrow["objectives"] == wide["objectives"]
    below = narrow["choice"]["below_objective_percent"]
    assert min(below.values()) >= 40
    assert below["ttft"] == pytest.approx(100 * (1 - narrow["choice"]["predicted"]["ttft_ms"] / 60))
    assert narrow["choice"]["price_per_hour"] >= wide["choice"]["price_per_hour"]


def test_out_of_time_it_says_so_and_not_that_nothing_would_do(model: str) -> None:
    limited = ("plan", model, *ASKED, *SMALL, "--ttft", "100ms", "--time-limit", "1ms")
    shown = run(*limited)
    assert shown.returncode == 3
    assert shown.stdout.startswith("The search was cut short (--time-limit 0.001s)")
    assert "Nothing meets" not in shown.stdout
    document = json.loads(run(*limited, "--json").stdout)
    assert (document["cut_short"], document["choice"]) == ("--time-limit 0.001s", None)


def test_without_a_terminal_it_tells_its_progress_and_an_interrupt_ends_it_with_an_answer() -> None:
    command = [sys.executable, "-m", "corepipe", "plan", "llama-3.1-70b", "--rate", "5", "--ttft", "1s"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert re.match(r"searching for the cheapest: 0 tried, \d+ of \d+ left, none found yet", line)
    assert process.returncode == 130
    assert stdout.startswith("The search was cut short (interrupted): this is the best so far")
    assert "Nothing that was examined so far meets the objectives." in stdout
    assert stderr.splitlines()[-1] == "corepipe: interrupted"


def test_what_has_no_price_is_named_with_the_flag_that_prices_it(model: str) -> None:
    wanted = (
        "--instance",
        "inf2.xlarge",
        "--instance",
        "trn2.48xlarge",
        "--dtype",
        "bf16",
        "--ttft",
        "100ms",
    )
    shown = run("plan", model, *ASKED, *wanted)
    (line,) = (line for line in shown.stdout.splitlines() if line.strip().startswith("trn2.48xlarge: "))
    assert "--purchase capacity-block --region us-east-1 (44.7 $/h)" in line


def test_a_plan_whose_intervals_all_overlap_says_so_instead_of_choosing(model: str) -> None:
    wanted = ("--instance", "inf2.xlarge", "--instance", "inf2.8xlarge", "--dtype", "bf16", "--ttft", "100ms")
    sure = ("--confidence", "0.9", "--next-measurement")
    shown = run("plan", model, *ASKED, *wanted, *sure)
    document = json.loads(run("plan", model, *ASKED, *wanted, *sure, "--json").stdout)
    confidence = document["confidence"]
    assert confidence["ranked_by_it"] is True
    assert (
        document["next_measurement"] is None
        or "corepipe bench" in document["next_measurement"]["commands"][0]
    )
    assert confidence["undecided"] is (document["choice"] is None)
    assert shown.returncode == (4 if confidence["undecided"] else 0)
    assert ("Nothing is chosen" in shown.stdout) is confidence["undecided"]


def test_a_choice_has_the_interval_of_each_figure(model: str) -> None:
    found = json.loads(run("plan", model, *ASKED, *SMALL, "--ttft", "100ms", "--json").stdout)["choice"]
    known = found["intervals"]
    for name in ("ttft_ms", "tpot_ms", "e2e_ms", "output_tokens_per_second"):
        low, high = known[name]
        assert low < found["predicted"][name] < high
    assert known["price_per_hour"][0] < found["price_per_hour"] < known["price_per_hour"][1]
