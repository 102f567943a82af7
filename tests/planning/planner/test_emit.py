"""Tests of the emitted files, read as their users would."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from corepipe.cli.app import app
from corepipe.cli.flags.settings import settings_of
from corepipe.engine.config import EngineConfig
from corepipe.engine.speculative_config import SpeculativeConfig
from corepipe.errors import UserError
from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import TIMED_FORMATS
from corepipe.planning.planner import vllm_native
from corepipe.planning.planner.emit_helm import FLAGS, PodSettings, helm_values
from corepipe.planning.planner.emit_vllm import neuron_resource, problem, runs, unfit, vllm_manifests
from corepipe.planning.planner.space import BatchLimits, Candidate, DeploymentShape, PlannedDeployment
from corepipe.planning.planner.vllm_nxdi import buckets
from corepipe.serving.config import ServerConfig

LISTED = json.loads((Path(__file__).parents[2] / "data/vllm_neuron/flags.json").read_text())
"""Every flag, key and variable that the two releases document, each with its source."""

ON_DEVICE_SAMPLING = {"do_sample", "top_k", "dynamic", "deterministic", "global_topk"}


LLAMA_3 = architecture("llama-3.1-8b").config


def deployment(
    name: str = "inf2.48xlarge",
    fmt: str = "bf16",
    placement: Placement | None = None,
    limits: BatchLimits | None = None,
) -> PlannedDeployment:
    cut = placement or Placement(tensor=8, data=3)
    shape = DeploymentShape(name, TIMED_FORMATS[fmt], cut, PROFILES["vllm-neuron"])
    return PlannedDeployment(Candidate(shape, limits or BatchLimits(4096, 16, 8192)), instances=2)


GUESSING = BatchLimits(
    4096,
    16,
    8192,
    SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=1,
        rejection_sample_method="synthetic",
        synthetic_acceptance_rates=(0.5,),
    ),
)


def values(*, weights: bool) -> dict[str, Any]:
    served = PodSettings("llama-3.1-8b", weights, "vllm-neuron", 12.3)
    divided = Placement(tensor=8, data=3, expert=8)
    text = helm_values(served, deployment(placement=divided, limits=GUESSING), ["predicted", "emulated"])
    assert text.startswith("# predicted\n# emulated\n")
    parsed = yaml.safe_load(text)
    assert isinstance(parsed, dict)
    return parsed


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return leaves


def serve_parameters() -> dict[str, str]:
    """Returns: flag of `corepipe serve` -> its parameter."""
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {flag.upper() if flag[0] != "-" else flag: p.name for p in command.params for flag in p.opts}


@pytest.mark.parametrize("weights", [False, True])
def test_helm_values_are_flags_of_serve_and_the_engine_takes_them(weights: bool) -> None:
    leaves = flat(values(weights=weights))
    assert set(leaves) <= {"replicas", *FLAGS}
    parameters = serve_parameters()
    given = {parameters[FLAGS[key]]: value for key, value in leaves.items() if key != "replicas"}
    names = settings_of(EngineConfig) | settings_of(ServerConfig)
    settings = {names[name]: value for name, value in given.items()}
    assert ServerConfig(shutdown_timeout=settings.pop("shutdown_timeout")).shutdown_timeout == 13
    config = EngineConfig.model_validate({**settings, "model": settings["model"] or "default"})
    assert config.instance == "inf2.48xlarge"
    assert (config.pipeline, config.tensor, config.data, config.expert) == (1, 8, 3, 8)
    assert (config.format, config.clock, config.profile) == ("bf16", "device", "vllm-neuron")
    assert (config.max_model_len, config.max_num_seqs, config.max_num_batched_tokens) == (4096, 16, 8192)


def test_nxd_inference_is_told_how_experts_are_divided() -> None:
    divided = deployment(placement=Placement(tensor=8, data=3, expert=8))
    config = neuron_config(divided)
    assert (config["tp_degree"], config["moe_ep_degree"], config["moe_tp_degree"]) == (8, 8, 1)
    assert config.keys() <= LISTED["nxdi"]["neuron_config"].keys()
    assert "moe_ep_degree" not in neuron_config(deployment())
    apart = deployment(placement=Placement(tensor=2, data=3, expert=4))
    assert not runs(apart.candidate.shape, LLAMA_3)


def test_a_model_without_weights_sets_the_pace_of_the_default_one() -> None:
    shape_only, loadable = values(weights=False), values(weights=True)
    assert (shape_only["model"], shape_only["timingModel"]) == (None, "llama-3.1-8b")
    assert (loadable["model"], loadable["timingModel"]) == ("llama-3.1-8b", None)
    assert shape_only["replicas"] == 2


def test_every_line_of_the_values_names_its_flag() -> None:
    guessing = deployment(placement=Placement(tensor=8, expert=8), limits=GUESSING)
    text = helm_values(PodSettings("m", weights=True, profile="nxdi", answer_seconds=1.0), guessing, [])
    for key in set(flat(yaml.safe_load(text))) & {*FLAGS}:
        assert re.search(rf"^ *{key.split('.')[-1]}: .*  # {FLAGS[key]}$", text, re.MULTILINE)


def manifests(
    chosen: PlannedDeployment, model: str = "meta-llama/Llama-3.1-8B"
) -> tuple[dict[str, Any], dict[str, Any]]:
    objects = list(yaml.safe_load_all(vllm_manifests(model, chosen, LLAMA_3, ["emulated"])))
    assert [o["kind"] for o in objects] == ["Deployment", "Service"]
    return objects[0], objects[1]


def container(chosen: PlannedDeployment) -> dict[str, Any]:
    (only,) = manifests(chosen)[0]["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def neuron_config(chosen: PlannedDeployment) -> dict[str, Any]:
    args = container(chosen)["args"]
    additional = json.loads(args[args.index("--additional-config") + 1])
    assert set(additional) == {"override_neuron_config"}
    config = additional["override_neuron_config"]
    assert isinstance(config, dict)
    return config


@pytest.mark.parametrize("fmt", ["bf16", "int8-weights", "fp32"])
def test_every_key_of_the_neuron_config_is_one_of_its_attributes(fmt: str) -> None:
    config = neuron_config(deployment(fmt=fmt))
    assert set(config) <= LISTED["nxdi"]["neuron_config"].keys()
    assert set(config["on_device_sampling_config"]) <= ON_DEVICE_SAMPLING
    assert config["tp_degree"] == 8
    assert config["batch_size"] == config["tkg_batch_size"] == 16
    assert config["seq_len"] == config["max_context_length"] == 4096
    assert ("quantized" in config) == (fmt == "int8-weights")


def test_buckets_are_those_that_nxd_inference_makes_by_itself() -> None:
    """2^7 to 2^(round(log2 L) - 1), and L: its modules/autobucketing.py."""
    assert buckets(1024) == [128, 256, 512, 1024]
    assert buckets(2500) == [128, 256, 512, 1024, 2500]
    assert buckets(3000) == [128, 256, 512, 1024, 2048, 3000]
    assert buckets(700) == [128, 256, 700]
    assert buckets(64) == [64]
    config = neuron_config(deployment())
    assert config["context_encoding_buckets"][-1] == config["token_generation_buckets"][-1] == 4096


def test_a_pod_is_a_replica_with_its_devices() -> None:
    workload, service = manifests(deployment())
    spec = workload["spec"]
    assert spec["replicas"] == 6
    pod = spec["template"]["spec"]
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "inf2.48xlarge"}
    assert pod["tolerations"] == [
        {"key": "aws.amazon.com/neuron", "operator": "Exists", "effect": "NoSchedule"}
    ]
    only = container(deployment())
    assert only["resources"]["limits"] == only["resources"]["requests"] == {"aws.amazon.com/neuron": 4}
    labels = spec["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == spec["selector"]["matchLabels"] == labels


def named_paths(value: object) -> set[str]:
    """Returns the absolute paths anywhere in arguments, variables and JSON within them."""
    if isinstance(value, dict):
        return set().union(*map(named_paths, value.values()))
    if isinstance(value, list):
        return set().union(*map(named_paths, value))
    if isinstance(value, str) and value.startswith("{"):
        return named_paths(json.loads(value))
    return {value} if isinstance(value, str) and value.startswith("/") else set()


@pytest.mark.parametrize("name", ["inf2.48xlarge", "trn2.48xlarge"])
@pytest.mark.parametrize("fmt", ["bf16", "int8-weights"])
@pytest.mark.parametrize("model", ["/models/mine", "meta-llama/Llama-3.1-8B"])
def test_every_path_that_is_named_is_mounted(name: str, fmt: str, model: str) -> None:
    placement = Placement(tensor=4 if "trn2" in name else 8)
    chosen = deployment(name, "bf16" if "trn2" in name else fmt, placement)
    pod = manifests(chosen, model)[0]["spec"]["template"]["spec"]
    (only,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in only.get("volumeMounts", [])}
    assert named_paths([only["args"], only["env"]]) == set(mounts.values())
    volumes = {volume["name"]: volume["hostPath"] for volume in pod.get("volumes", [])}
    assert volumes.keys() == mounts.keys()
    made = {kind for kind, volume in volumes.items() if volume["type"] == "DirectoryOrCreate"}
    assert made == ({"compiled"} if "trn2" in name else set())
    text = vllm_manifests(model, chosen, LLAMA_3, [])
    assert all(f"# each node has {volume['path']}: " in text for volume in volumes.values())


def test_values_mount_what_they_name(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    served = PodSettings(str(tmp_path), weights=True, profile=str(tmp_path / "mine.json"), answer_seconds=1.0)
    parsed = yaml.safe_load(helm_values(served, deployment(), []))
    kinds = {volume["hostPath"]["path"]: volume["hostPath"]["type"] for volume in parsed["extraVolumes"]}
    assert kinds == {parsed["model"]: "Directory", parsed["profile"]: "File"}
    mounted = {mount["mountPath"] for mount in parsed["extraVolumeMounts"]}
    assert mounted == kinds.keys()
    assert all(mount["readOnly"] for mount in parsed["extraVolumeMounts"])


def test_part_of_a_device_is_asked_for_in_cores() -> None:
    assert neuron_resource(instance("inf2.xlarge"), 1) == ("aws.amazon.com/neuroncore", 1)
    assert neuron_resource(instance("inf2.xlarge"), 2) == ("aws.amazon.com/neuron", 1)
    assert neuron_resource(instance("trn2.48xlarge"), 64) == ("aws.amazon.com/neuron", 16)


def test_numbers_of_lengths_and_batches_are_vllms_flags() -> None:
    args = container(deployment())["args"]
    pairs = dict(pairwise(args))
    assert pairs["--tensor-parallel-size"] == "8"
    assert (pairs["--max-num-seqs"], pairs["--max-model-len"]) == ("16", "4096")


def test_without_prefix_caching_there_is_a_block_for_each_sequence() -> None:
    """The plugin makes blocks of max_model_len tokens then, and takes no other number of them."""
    args = container(deployment())["args"]
    assert "--no-enable-prefix-caching" in args
    assert "--block-size" not in args
    assert dict(pairwise(args))["--num-gpu-blocks-override"] == "16"


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        (deployment("inf1.6xlarge", placement=Placement()), "vLLM does not run on inf1.6xlarge"),
        (deployment(placement=Placement(2, 8, 1)), "NxD Inference cuts by tensor alone"),
        (deployment(fmt="int8"), "has no int8; use --dtype bf16"),
        (deployment(placement=Placement(1, 6, 1)), "tensor 6 is not accepted on inf2"),
        (
            deployment("trn2.48xlarge", fmt="int8-weights"),
            "native plugin has no int8-weights for llama on trn2",
        ),
        (deployment("trn2.48xlarge", placement=Placement(2, 8, 1)), "native plugin has no pipelines"),
        (deployment("trn3.48xlarge", fmt="mxfp8"), "has no mxfp8 for llama on trn3; use --dtype bf16 or fp8"),
        (deployment("trn3.48xlarge", placement=Placement(1, 6, 1)), "tensor 6 is not accepted on trn3"),
    ],
)
def test_what_vllm_on_neuron_cannot_run_is_refused(chosen: PlannedDeployment, says: str) -> None:
    assert not runs(chosen.candidate.shape, LLAMA_3)
    with pytest.raises(UserError, match=says):
        vllm_manifests("m", chosen, LLAMA_3, [])


def test_names_of_objects_are_those_that_kubernetes_takes() -> None:
    name = manifests(deployment(), "/models/" + "Llama_3.1" * 20)[0]["metadata"]["name"]
    assert len(name) <= 63
    assert name.replace("-", "").isalnum()
    assert name == name.lower().strip("-")


CHUNKED, WHOLE = BatchLimits(8192, 16, 2048), BatchLimits(4096, 16, 4096)
TRN = ("trn2.48xlarge", "trn2.3xlarge", "trn3.48xlarge", "trn3pd98.3xlarge")


def native(name: str, limits: BatchLimits, fmt: str = "bf16") -> PlannedDeployment:
    return deployment(name, fmt, Placement(tensor=4 if name in TRN else 8), limits)


def config_of(args: list[str]) -> tuple[str, dict[str, Any]]:
    """Returns the one key of --additional-config, and its value."""
    ((key, config),) = json.loads(args[args.index("--additional-config") + 1]).items()
    return key, config


WRITTEN = [
    (name, limits, fmt)
    for name in ("inf2.48xlarge", "trn1.32xlarge", "trn1n.32xlarge", *TRN)
    for limits in (CHUNKED, WHOLE)
    for fmt in (("bf16", "fp8") if name in TRN else ("bf16", "int8-weights", "fp32"))
]


@pytest.mark.parametrize(("name", "limits", "fmt"), WRITTEN)
def test_every_flag_key_and_variable_is_a_documented_one(name: str, limits: BatchLimits, fmt: str) -> None:
    chosen = native(name, limits, fmt)
    listed = LISTED["native" if name in TRN else "nxdi"]
    only = container(chosen)
    args = only["args"]
    key, config = config_of(args)
    assert {arg for arg in args if arg.startswith("--")} <= listed["flags"].keys()
    assert [key] == listed["additional_config"]
    assert config.keys() <= listed["neuron_config"].keys()
    variables = {entry["name"] for entry in only["env"]}
    assert variables <= listed["environment"].keys()
    written = {*args, *config, *variables, key}
    assert written.isdisjoint(listed["never"])


def test_the_native_plugin_is_asked_to_divide_experts() -> None:
    """A flag divides them among all tensor ranks."""
    placement, flag = Placement(tensor=4, expert=4), "--enable-expert-parallel"
    divided = deployment("trn2.48xlarge", "bf16", placement, CHUNKED)
    assert flag in vllm_native.flags("m", divided)
    assert flag in LISTED["native"]["flags"]
    assert flag not in vllm_native.flags("m", native("trn2.48xlarge", CHUNKED))
    gpt_oss = architecture("gpt-oss-20b").config
    assert problem(divided.candidate.shape, gpt_oss) is None
    apart = deployment("trn2.48xlarge", "bf16", Placement(tensor=2, expert=4), CHUNKED)
    assert "among all tensor ranks" in (problem(apart.candidate.shape, gpt_oss) or "")


def test_graphs_of_the_native_plugin_in_chunks() -> None:
    args = container(native("trn2.48xlarge", CHUNKED))["args"]
    assert config_of(args)[1] == {
        "num_batched_tokens_buckets": [2048],
        "num_seqs_buckets": [1, 2, 4, 8, 16],
        "on_device_sampling_config": {},
        "kv_segment_size_buckets": [2048],
    }
    assert "--enable-prefix-caching" in args
    pairs = dict(pairwise(args))
    assert (pairs["--max-num-batched-tokens"], pairs["--max-model-len"]) == ("2048", "8192")


def test_graphs_of_the_native_plugin_where_prompts_are_computed_whole() -> None:
    args = container(native("trn2.48xlarge", BatchLimits(3000, 12, 8192)))["args"]
    assert config_of(args)[1] == {
        "num_batched_tokens_buckets": [128, 256, 512, 1024, 2048, 3000],
        "num_seqs_buckets": [1, 2, 4, 8, 12],
        "on_device_sampling_config": {},
    }
    assert "--no-enable-prefix-caching" in args
    assert dict(pairwise(args))["--max-num-batched-tokens"] == "3000"


def test_releases_are_those_of_the_hardware() -> None:
    images = {name: container(native(name, WHOLE))["image"] for name in ("inf2.48xlarge", "trn3.48xlarge")}
    assert "0.13.0-neuronx-py312-sdk2.28.0" in images["inf2.48xlarge"]
    assert "sdk2.33.0" in images["trn3.48xlarge"]


def test_compiled_graphs_outlive_a_pod_and_it_has_time_to_compile() -> None:
    only = container(native("trn2.48xlarge", CHUNKED))
    variables = {entry["name"]: entry["value"] for entry in only["env"]}
    assert [mount["mountPath"] for mount in only["volumeMounts"]] == [variables["VLLM_CACHE_ROOT"]]
    probe = only["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == int(variables["VLLM_ENGINE_READY_TIMEOUT_S"])


@pytest.mark.parametrize(
    ("model", "name", "fmt", "says"),
    [
        ("llama-2-7b", "trn2.48xlarge", "bf16", "has no llama of this kind; it has Llama 3"),
        ("mistral-7b", "trn3.48xlarge", "bf16", "has no mistral of this kind"),
        ("qwen3-8b", "trn2.48xlarge", "bf16", "has no qwen3 of this kind; .* Qwen3-32B"),
        ("gpt-oss-20b", "trn2.48xlarge", "mxfp4", "has no mxfp4 for gpt_oss on trn2; use --dtype bf16"),
        ("gpt-oss-20b", "trn3.48xlarge", "fp8", "use --dtype bf16 or mxfp4"),
    ],
)
def test_models_and_formats_that_the_native_plugin_lacks_are_refused_by_name(
    model: str, name: str, fmt: str, says: str
) -> None:
    with pytest.raises(UserError, match=says) as refused:
        vllm_manifests("m", native(name, WHOLE, fmt), architecture(model).config, [])
    assert refused.value.param == "emit"


@pytest.mark.parametrize("model", ["llama-3.3-70b", "qwen3-32b", "gpt-oss-120b"])
def test_models_that_it_has_are_written(model: str) -> None:
    assert runs(native("trn2.48xlarge", WHOLE).candidate.shape, architecture(model).config)


@pytest.mark.parametrize(
    ("name", "limits", "why"),
    [
        ("trn2.48xlarge", CHUNKED, None),
        ("trn2.48xlarge", WHOLE, None),
        ("trn2.48xlarge", BatchLimits(8192, 8, 3000), "in chunks of 512, 1024"),
        ("trn2.48xlarge", BatchLimits(32_768, 8, 40_000), "up to 16384 tokens whole"),
        ("trn2.48xlarge", BatchLimits(4098, 8, 8192), "divisible by tensor 4"),
        ("inf2.48xlarge", WHOLE, None),
        ("inf2.48xlarge", BatchLimits(8192, 8, 512), "computes prompts whole"),
    ],
)
def test_batches_that_cannot_be_written_so_are_not_planned_with(
    name: str, limits: BatchLimits, why: str | None
) -> None:
    found = unfit(native(name, limits).candidate, prompt=1000)
    assert found == why or (why and found and why in found)
