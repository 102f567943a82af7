"""`corepipe plan`, from the command line to what it prints."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from corepipe.cli.common import seconds as seconds_of
from corepipe.errors import UserError
from corepipe.neuron.profiles import PROFILES, as_text
from tests.planning.planner.test_planner import CONFIG
from tests.servers import run

ASKED = ("--rate", "100", "--input-len", "uniform:100:300", "--output-len", "10", "--requests", "40")
SMALL = ("--instance", "inf2.xlarge", "--dtype", "bf16")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def test_the_choice_is_labelled_as_emulated_and_says_how_sure_it_is(model: str) -> None:
    shown = run("plan", model, *ASKED, *SMALL, "--ttft", "100ms", "--tpot", "0.01s")
    assert shown.returncode == 0
    first, sure, price = shown.stdout.splitlines()[:3]
    assert first.startswith("1 x inf2.xlarge")
    assert "0.758 $/h (emulated)" in first
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
    assert "nearest: inf2.xlarge" in shown.stdout
    assert re.search(r"ms would be met by \d x inf2.xlarge", shown.stdout)


def test_emitted_values_are_all_of_stdout(model: str) -> None:
    shown = run("plan", model, *ASKED, *SMALL, "--ttft", "100ms", "--emit", "helm")
    assert shown.returncode == 0
    values = yaml.safe_load(shown.stdout)
    assert (values["instance"], values["replicas"]) == ("inf2.xlarge", 1)
    assert values["timingModel"] == model
    assert "emulated" in shown.stdout
    assert "1 x inf2.xlarge" in shown.stderr


def test_a_profile_of_ones_own_is_emitted_by_its_path(model: str, tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    own = replace(PROFILES["vllm-neuron"], name="measured")
    file.write_text(as_text(own, "vllm-neuron", {}))
    shown = run("plan", model, *ASKED, *SMALL, "--ttft", "100ms", "--profile", str(file), "--emit", "helm")
    assert shown.returncode == 0
    assert yaml.safe_load(shown.stdout)["profile"] == str(file)


def test_the_real_stack_is_chosen_for_where_its_manifests_are_wanted(model: str) -> None:
    wanted = ("--instance", "inf1.xlarge", "--instance", "inf2.xlarge", "--emit", "vllm-neuron")
    shown = run("plan", model, *ASKED, *wanted, "--ttft", "100ms")
    assert shown.returncode == 0
    workload, _ = yaml.safe_load_all(shown.stdout)
    assert workload["kind"] == "Deployment"
    selector = workload["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {"node.kubernetes.io/instance-type": "inf2.xlarge"}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--instance", "inf2.xlarg"), "unknown instance 'inf2.xlarg'; did you mean inf2.xlarge"),
        (("--ttft", "500"), "--ttft 500: give a time with its unit, as 500ms or 0.5s"),
        (("--region", "mars"), "--region mars: the price list has no prices there; use --region"),
        (
            ("--instance", "trn2.48xlarge"),
            "no on-demand price in us-east-1; it has --purchase capacity-block",
        ),
        (("--prices", "nowhere.csv"), "--prices nowhere.csv: cannot be read"),
        (("--input-len", "9000"), "--input-len 9000: with --output-len 10 requests have up to 9010 tokens"),
        (("--emit", "helm", "--json"), "give one of them"),
        (("--rate", "0"), "--rate must be a number of requests a second above 0"),
        (("--profile", "nvidia"), "--profile nvidia: no such file"),
        (
            ("--emit", "vllm-neuron", "--dtype", "int8", "--instance", "inf2.xlarge"),
            "has no int8; use --dtype",
        ),
        (("--emit", "vllm-neuron", "--instance", "inf1.xlarge"), "vLLM does not run on inf1.xlarge"),
        (("--max-model-len", "999999999"), "--max-model-len 999999999: "),
    ],
)
def test_what_is_wrong_is_one_line(model: str, flags: tuple[str, ...], says: str) -> None:
    shown = run("plan", model, *ASKED, *flags)
    assert shown.returncode == 2
    assert says in shown.stderr.splitlines()[-1]


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("0.5s", 0.5), (".5s", 0.5), (None, None)])
def test_times(text: str | None, seconds: float | None) -> None:
    assert seconds_of("--ttft", text) == seconds


@pytest.mark.parametrize("text", ["500", "5 m", "-1s", "0ms", "nan", "1e3ms", ""])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="--ttft"):
        seconds_of("--ttft", text)
