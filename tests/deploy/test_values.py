"""values.yaml, its schema, its README and the settings of the server say the same."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from typing import Any, get_args

import pytest
import yaml

from corepipe.cli.flags.also import OWN, also_asked
from corepipe.cli.flags.options import ModeOption
from corepipe.cli.flags.settings import SETTINGS as FLAG_SETTINGS
from corepipe.engine.config import EngineConfig
from corepipe.neuron.chips.catalog import INSTANCES
from corepipe.neuron.chips.profiles import profile
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS, TIMED_FORMATS
from corepipe.planning.planner.emit_helm import FLAGS, Served, helm_values
from corepipe.planning.planner.space import BatchLimits, Candidate, PlannedDeployment, Shape
from corepipe.serving.config import ServerConfig
from tests.deploy import chart_readme
from tests.deploy.charts import (
    CASES,
    CHART,
    ROOT,
    attempt,
    commands,
    container,
    default_values,
    of_kind,
    parsed,
    refusal,
    rendered,
    serve_parameters,
    values_file,
)

SETTINGS = {
    "task": ("embed", "task"),
    "verify": (True, "verify"),
    "trustRequestChatTemplate": (True, "trust_request_chat_template"),
    "allowSpecialTokensInText": (True, "allow_special_tokens_in_text"),
    "strict": (True, "strict"),
    "toolCallParser": ("hermes", "tool_call_parser"),
    "reasoningParser": ("qwen3", "reasoning_parser"),
    "format": ("bf16", "format"),
    "bits": ("same", "bits"),
    "seed": (3, "seed"),
    "instance": ("trn1.2xlarge", "instance"),
    "placement.mode": ("latency", "mode"),
    "placement.pipeline": (2, "pipeline"),
    "placement.tensor": (2, "tensor"),
    "placement.data": (2, "data"),
    "placement.expert": (2, "expert"),
    "clock": ("device", "clock"),
    "timeScale": (0.5, "time_scale"),
    "timingModel": ("llama-3.1-8b", "timing_model"),
    "profile": ("nxdi", "profile"),
    "policy": ("segregated", "policy"),
    "batching.maxModelLen": (512, "max_model_len"),
    "batching.maxNumSeqs": (16, "max_num_seqs"),
    "batching.maxNumBatchedTokens": (64, "max_num_batched_tokens"),
    "batching.maxBatchDelay": (0.5, "max_batch_delay"),
    "batching.blockSize": (64, "block_size"),
    "batching.numBlocks": (100, "num_blocks"),
    "batching.kvCacheMemoryBytes": (2_000_000_000, "kv_cache_bytes"),
    "batching.kvCacheDtype": ("int8", "kv_cache_dtype"),
    "batching.speculativeConfig": (
        '{"method": "ngram", "num_speculative_tokens": 3}',
        "speculative_config",
    ),
    "batching.prefixCaching": (False, "prefix_cache"),
    "batching.maxNumQueuedReqs": (10, "max_queued_requests"),
    "batching.maxNumQueuedTokens": (3_000_000, "max_queued_tokens"),
    "batching.maxQueueSeconds": (20, "max_queue_seconds"),
    "threads": (3, "threads"),
    "drainSeconds": (30, "shutdown_timeout"),
    "tracing.otlpEndpoint": ("http://collector:4318/v1/traces", "otlp_traces_endpoint"),
    "faults.inject": ("429:5%,slow:1%@500ms", "inject"),
    "faults.withKeys": (True, "inject_with_keys"),
}
"""Value -> an example, and the server's setting that it is."""

OTHER_FLAGS = {"model", "host", "port", "api_key", "insecure", "served_model_name", "chat_template"} | {
    "allowed_origin",
    "admin_host", "admin_port", "admin_api_key", "metrics_host", "metrics_port",
    "kv_events_config",
    "ssl_certfile", "ssl_keyfile", "api_key_file",
    "max_requests_per_key", "max_tokens_per_minute_per_key", "max_connections", "also",
    "record", "record_redact", "replay", "replay_else", "replay_pace", "fleet", "replicas", "max_replicas",
    "slo", "verbose",
}  # fmt: skip
"""Flags that tests of their own look at, that follow from other values, or that are for CI alone or for
machines without Kubernetes."""

WRONG: list[tuple[dict[str, Any], list[str]]] = [
    (
        {
            "instance": "inf9.large",
            "instnce": "inf2.xlarge",
            "placement": {"tensr": 2, "tensor": 0},
            "format": "int4",
            "clock": "virtual",
            "batching": {"blockSize": 17},
            "fleet": {"machines": 0},
            "replicas": "two",
            "autoscaling": {"type": "both"},
            "image": {"digest": "latest"},
            "resources": {"limits": {"memory": "much"}},
            "cache": {"accessMode": "ReadOnlyMany"},
            "tracing": {"otlpEndpoint": "collector:4317"},
            "faults": {"inject": "429:5"},
            "also": [
                {"name": "a"},
                {"name": "a,b", "model": "m"},
                {"name": "a", "model": "m", "options": {"port": 80}},
            ],
            "loadTest": {"rate": 0, "assertions": ["p99"], "sweep": True},
        },
        [
            r"at '/instance': value must be one of .*'inf2.xlarge'",
            r"additional properties 'instnce' not allowed",
            r"at '/placement': additional properties 'tensr' not allowed",
            r"at '/placement/tensor': minimum: got 0, want 1",
            r"at '/format': value must be one of .*'int8'",
            r"at '/clock': value must be one of 'host', 'device'",
            r"at '/batching/blockSize': multipleOf: got 17, want 16",
            r"at '/fleet/machines': minimum: got 0, want 1",
            r"at '/replicas': got string, want integer",
            r"at '/autoscaling/type': value must be one of 'none', 'hpa', 'keda'",
            r"at '/image/digest': 'latest' does not match pattern",
            r"at '/resources/limits/memory': 'much' does not match",
            r"at '/cache/accessMode': value must be one of",
            r"at '/tracing/otlpEndpoint': 'collector:4317' does not",
            r"at '/faults/inject': '429:5' does not match",
            r"at '/also/0': missing property 'model'",
            r"at '/also/1/name': 'a,b' does not match pattern",
            r"at '/also/2/options': additional properties 'port' not allowed",
            r"at '/loadTest/rate': exclusiveMinimum: got 0, want 0",
            r"at '/loadTest/assertions/0': 'p99' does not match pattern",
            r"at '/loadTest': additional properties 'sweep' not allowed",
        ],
    ),
    ({"autoscaling": {"type": ["hpa", "keda"]}}, [r"at '/autoscaling/type': value must be one of"]),
    ({"replicaCount": 2}, [r"replicaCount: this chart calls it replicas"]),
    (
        {"ingress": {"enabled": True}, "allowWithoutKeys": True},
        [r"networkPolicy.from: the policy lets in this namespace alone; add that of the Ingress controller"],
    ),
    (
        {"httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}]}, "allowWithoutKeys": True},
        [r"networkPolicy.from: "],
    ),
    (
        {"cache": {"persistent": True}, "replicas": 2},
        [r"cache.accessMode: .* a claim that is ReadWriteOnce;"],
    ),
    (
        {"cache": {"existingClaim": "c", "accessMode": "ReadWriteOncePod"}, "replicas": 3},
        [r"cache.accessMode: .* a claim that is ReadWriteOncePod;"],
    ),
    ({"cache": {"persistent": True}, "autoscaling": {"type": "hpa"}}, [r"cache.accessMode: "]),
    ({"cache": {"persistent": True}, "fleet": {"enabled": True}}, [r"cache.accessMode: "]),
    ({"fleet": {"enabled": True}, "replicas": 2}, [r"fleet.enabled: one front has all machines"]),
    (
        {"fleet": {"enabled": True}, "kvEvents": {"enabled": True}},
        [r"fleet.enabled: a fleet serves one model"],
    ),
    ({"fleet": {"enabled": True, "maxMachines": 1}}, [r"fleet.maxMachines is less than fleet.machines"]),
    ({"fleet": {"enabled": True, "slo": "ttft:1s"}}, [r"fleet.slo: machines are added up to"]),
    (
        {"faults": {"inject": "429:5%"}, "apiKeys": {"existingSecret": "keys"}},
        [r"faults.withKeys: faults make requests fail"],
    ),
    ({"timeScale": 2}, [r"timeScale: only the device's clock has a scale; set clock: device"]),
    ({"ingress": {"enabled": True}}, [r"apiKeys.existingSecret: .* wants API keys; name a secret"]),
    ({"service": {"type": "LoadBalancer"}}, [r"apiKeys.existingSecret: "]),
    ({"httpRoute": {"enabled": True}, "allowWithoutKeys": True}, [r"httpRoute.parentRefs: name the gateway"]),
    (
        {"loadTest": {"rate": 2, "concurrency": 3}},
        [r"loadTest.rate is an open loop and loadTest.concurrency a"],
    ),
    ({"inferencePool": {"enabled": True}}, [r"inferencePool.endpointPicker.name: "]),
    ({"autoscaling": {"type": "keda"}}, [r"autoscaling.keda.prometheusAddress: KEDA asks Prometheus"]),
    (
        {"kvEvents": {"enabled": True}, "networkPolicy": {"enabled": False}},
        [r"kvEvents.enabled: the events have all prompts' token ids"],
    ),
    (
        {"kvEvents": {"enabled": True}, "batching": {"prefixCaching": False}},
        [r"kvEvents.enabled: there is no prefix cache"],
    ),
    (
        {
            "inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}},
            "also": [{"name": "a", "model": "m"}],
        },
        [r"inferencePool.enabled: an endpoint picker reads the metrics of one model"],
    ),
    (
        {
            "metricsPort": {"enabled": True, "from": [{"podSelector": {}}]},
            "networkPolicy": {"enabled": False},
        },
        [r"metricsPort.from: it is networkPolicy.enabled that lets in nobody else"],
    ),
    (
        {"autoscaling": {"type": "hpa", "minReplicas": 5}},
        [r"autoscaling.minReplicas is more than autoscaling.maxReplicas"],
    ),
    (
        {"ingress": {"enabled": True, "tlsSecret": "x"}, "allowWithoutKeys": True},
        [r"ingress.host: a certificate"],
    ),
]
"""Values, and all that is said of them: what breaks the schema together; a template refuses one by one."""


def values_of(keys: Iterable[str]) -> dict[str, Any]:
    """The examples of some values, together."""
    together: dict[str, Any] = {"clock": "device"} if "timeScale" in keys else {}
    for key in keys:
        *parents, last = key.split(".")
        at = together
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = SETTINGS[key][0]
    return together


def as_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Settings of the server that the chart makes of values."""
    return {
        FLAG_SETTINGS.get(flag, flag): value for flag, value in serve_parameters(rendered(values)).items()
    }


def schema() -> dict[str, Any]:
    return json.loads((CHART / "values.schema.json").read_text())


def schema_of(key: str) -> dict[str, Any]:
    at = schema()
    for part in key.split("."):
        at = at["properties"][part]
        if "$ref" in at:
            at = schema()["$defs"][at["$ref"].rpartition("/")[2]]
    return at


@pytest.mark.parametrize(("values", "messages"), WRONG, ids=lambda given: ",".join(given)[:60])
def test_what_is_wrong_is_refused_readably(values: dict[str, Any], messages: list[str]) -> None:
    told = refusal(values)
    assert [message for message in messages if not re.search(message, told)] == [], told


@pytest.mark.parametrize("keys", [[*SETTINGS][::2], [*SETTINGS][1::2]], ids=["one", "the-next"])
def test_values_are_settings_of_the_server(keys: list[str]) -> None:
    """Every second one together, so that none hangs on its neighbour."""
    settings = as_settings(values_of(keys))
    assert {key: settings[SETTINGS[key][1]] for key in keys} == {key: SETTINGS[key][0] for key in keys}


@pytest.mark.slow
@pytest.mark.parametrize("key", SETTINGS)
def test_a_value_is_a_setting_of_the_server(key: str) -> None:
    value, setting = SETTINGS[key]
    assert as_settings(values_of([key]))[setting] == value


def test_further_models_are_flags_and_share_the_cpus() -> None:
    also = [{"name": "b", "model": "/m/b", "options": {"dtype": "fp32", "max-num-seqs": 16}}]
    also += [{"name": "c", "model": "org/c", "options": {"enable-prefix-caching": False, "threads": 2}}]
    given = serve_parameters(rendered({"also": also}))
    assert given["also"] == [
        "b=/m/b,dtype=fp32,max-num-seqs=16",
        "c=org/c,enable-prefix-caching=false,threads=2",
    ]
    assert given["threads"] is None
    asked = also_asked(given["also"], EngineConfig(model="m"), ServerConfig())
    assert [(engine.format, engine.prefix_cache) for engine, _ in asked] == [("fp32", True), ("int8", False)]
    assert serve_parameters(rendered({"also": also, "threads": 3}))["threads"] == 3


def test_the_schema_has_the_options_of_a_further_model() -> None:
    options = schema_of("also")["items"]["properties"]["options"]
    assert [*options["properties"]] == [*OWN]


def test_every_flag_of_the_server_is_a_value() -> None:
    flags = {parameter.name for parameter in commands()["serve"].params} - OTHER_FLAGS
    assert {FLAG_SETTINGS.get(flag, flag) for flag in flags} == {setting for _, setting in SETTINGS.values()}


@pytest.mark.parametrize("key", SETTINGS)
def test_the_schema_has_the_bounds_of_the_setting(key: str) -> None:
    field = {**EngineConfig.model_fields, **ServerConfig.model_fields}[SETTINGS[key][1]]
    bounds = {
        name: getattr(m, name)
        for m in field.metadata
        for name in ("ge", "le", "multiple_of")
        if hasattr(m, name)
    }
    named = {"ge": "minimum", "le": "maximum", "multiple_of": "multipleOf"}
    said = schema_of(key)
    assert {name: said.get(named[name]) for name in bounds} == bounds


def test_the_schema_lists_what_there_is() -> None:
    assert schema_of("instance")["enum"] == [instance.name for instance in INSTANCES]
    assert set(schema_of("format")["enum"]) == FORMATS.keys()
    assert set(get_args(EngineConfig.model_fields["format"].annotation)) == TIMED_FORMATS.keys()
    assert set(schema_of("placement.mode")["enum"]) == {mode.value for mode in get_args(ModeOption)[0]}


def test_the_schema_refuses_what_it_does_not_know() -> None:
    def objects(at: object) -> list[dict[str, Any]]:
        inner = at.values() if isinstance(at, dict) else at if isinstance(at, list) else []
        found = [one for value in inner for one in objects(value)]
        return (
            [*found, at]
            if isinstance(at, dict) and "properties" in at and at.get("type") == "object"
            else found
        )

    assert len(objects(schema())) > 20
    assert all(one["additionalProperties"] is False for one in objects(schema()))


def test_the_schema_has_every_value_and_no_other() -> None:
    def keys(at: dict[str, Any], path: str = "") -> set[str]:
        found = set()
        for name, inner in at["properties"].items():
            at_name = schema()["$defs"][inner["$ref"].rpartition("/")[2]] if "$ref" in inner else inner
            found |= keys(at_name, f"{path}{name}.") if "properties" in at_name else {path + name}
        return found

    def values(at: dict[str, Any], known: set[str], path: str = "") -> set[str]:
        found = set()
        for name, inner in at.items():
            whole = path + name in known or not isinstance(inner, dict)
            found |= {path + name} if whole else values(inner, known, f"{path}{name}.")
        return found

    known = keys(schema()) - {"global", "replicaCount"}  # which is refused by name
    assert values(default_values(), known) == known


def test_every_value_is_used_by_a_template() -> None:
    text = "\n".join(path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file())
    unused = [key for key in chart_readme.leaves(default_values()) if key.split(".")[-1] not in text]
    whole = ("resources.", "probes.", "podSecurityContext.", "securityContext.", "dashboards.labels.")
    whole += ("fleet.resources.",)
    assert [key for key in unused if not key.startswith(whole)] == []


def test_the_cases_use_every_switch() -> None:
    switches = {key for key in chart_readme.leaves(default_values()) if key.endswith(".enabled")}
    used = set()
    for case in CASES:
        found = yaml.safe_load(values_file(case).read_text())
        used |= {key for key in chart_readme.leaves(found) if key.endswith(".enabled")}
    on = {"networkPolicy.enabled", "podDisruptionBudget.enabled"}
    assert switches - used == on
    off = rendered({"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}})
    assert not of_kind(off, "NetworkPolicy") + of_kind(off, "PodDisruptionBudget")


def test_the_readme_is_the_one_of_these_values() -> None:
    assert chart_readme.PAGE.read_text() == chart_readme.page()


def test_the_readme_describes_every_value() -> None:
    rows = [row for part in chart_readme.sections((CHART / "values.yaml").read_text()) for row in part.rows]
    described = [key for key, _, _ in rows]
    assert len(described) == len(set(described))
    missing = [
        leaf
        for leaf in chart_readme.leaves(default_values())
        if not any(leaf == key or leaf.startswith(f"{key}.") for key in described)
    ]
    assert missing == []


def test_chart_and_package_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == project["version"]


def plan(**more: Any) -> PlannedDeployment:
    place = Placement(pipeline=1, tensor=2, data=1)
    shape = Shape("trn1.2xlarge", FORMATS["bf16"], place, profile("nxdi"))
    return PlannedDeployment(Candidate(shape, BatchLimits(4096, 8, 2048)), instances=3)


@pytest.mark.parametrize("weights", [True, False])
def test_what_a_plan_emits_installs_unchanged(weights: bool, tmp_path: Any) -> None:
    emitted = tmp_path / "plan.yaml"
    emitted.write_text(helm_values(Served("llama-3.1-8b", weights, "nxdi", 12.3), plan(), ["a note"]))
    found = parsed(attempt([emitted]))
    given = serve_parameters(found)
    assert of_kind(found, "Deployment")[0]["spec"]["replicas"] == 3
    assert (given["model"], given["timing_model"]) == (
        ("llama-3.1-8b", None) if weights else (None, "llama-3.1-8b")
    )
    shown = {
        name: given[name] for name in ("instance", "pipeline", "tensor", "data", "dtype", "clock", "profile")
    }
    assert shown == {
        "instance": "trn1.2xlarge",
        "pipeline": 1,
        "tensor": 2,
        "data": 1,
        "dtype": "bf16",
        "clock": "device",
        "profile": "nxdi",
    }
    assert (given["max_model_len"], given["max_num_seqs"], given["max_num_batched_tokens"]) == (4096, 8, 2048)


def test_a_plan_names_the_flags_that_the_chart_makes_of_its_values() -> None:
    values = {key: value for key, (value, _) in SETTINGS.items() if key in FLAGS}
    assert {*values, "model"} == set(FLAGS)
    arguments = container(rendered(values_of(values)))["args"]
    assert [
        f"{FLAGS[key]}={value}" for key, value in values.items() if f"{FLAGS[key]}={value}" not in arguments
    ] == []
