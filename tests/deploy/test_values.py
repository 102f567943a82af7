"""values.yaml, its schema, its README and the settings of the server say the same."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from corepipe.cli.flags.also import OWN, also_configs
from corepipe.cli.flags.settings import settings_of
from corepipe.engine.config import EngineConfig
from corepipe.engine.flag import flags_in
from corepipe.neuron.chips.catalog import INSTANCES
from corepipe.neuron.chips.profiles import profile
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS, TIMED_FORMATS
from corepipe.planning.planner.emit_helm import FLAGS, PodSettings, helm_values
from corepipe.planning.planner.space import BatchLimits, Candidate, DeploymentShape, PlannedDeployment
from corepipe.serving.config import ServerConfig
from tests.deploy import chart_readme, chart_schema
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

EXAMPLES = {
    "task": "embed",
    "verify": True,
    "trustRequestChatTemplate": True,
    "allowSpecialTokensInText": True,
    "strict": True,
    "toolCallParser": "hermes",
    "reasoningParser": "qwen3",
    "format": "bf16",
    "bits": "same",
    "seed": 3,
    "instance": "trn1.2xlarge",
    "placement.mode": "latency",
    "placement.pipeline": 2,
    "placement.tensor": 2,
    "placement.data": 2,
    "placement.expert": 2,
    "clock": "device",
    "timeScale": 0.5,
    "timingModel": "llama-3.1-8b",
    "profile": "nxdi",
    "policy": "segregated",
    "batching.maxModelLen": 512,
    "batching.maxNumSeqs": 16,
    "batching.maxNumBatchedTokens": 64,
    "batching.maxBatchDelay": 0.5,
    "batching.blockSize": 64,
    "batching.numBlocks": 100,
    "batching.kvCacheMemoryBytes": 2_000_000_000,
    "batching.kvCacheDtype": "int8",
    "batching.speculativeConfig": '{"method": "ngram", "num_speculative_tokens": 3}',
    "batching.prefixCaching": False,
    "batching.maxNumQueuedReqs": 10,
    "batching.maxNumQueuedTokens": 3_000_000,
    "batching.maxQueueSeconds": 20,
    "lora.enabled": True,
    "lora.dir": "/adapters",
    "lora.maxLoras": 4,
    "lora.maxLoraRank": 64,
    "threads": 3,
    "drainSeconds": 30,
    "tracing.otlpEndpoint": "http://collector:4318/v1/traces",
    "faults.inject": "429:5%,slow:1%@500ms",
    "faults.withKeys": True,
}
"""Values of the chart that are settings of the server."""

SETTINGS = {
    flag.chart: (EXAMPLES[flag.chart], name)
    for config in (EngineConfig, ServerConfig)
    for name, flag in flags_in(config).items()
    if flag.chart is not None and name != "model"
}
"""Value -> an example, and the server's setting that it is."""

NAMES = settings_of(EngineConfig) | settings_of(ServerConfig)
"""Parameter of the command -> the setting that it is."""

OTHER_FLAGS = {"model", "host", "port", "api_key", "insecure", "served_model_name", "chat_template"} | {
    "allowed_origin",
    "admin_host", "admin_port", "admin_api_key", "metrics_host", "metrics_port",
    "kv_events_config", "lora_modules",
    "ssl_certfile", "ssl_keyfile", "api_key_file",
    "max_requests_per_key", "max_tokens_per_minute_per_key", "max_connections", "also",
    "record", "record_redact", "replay", "replay_else", "replay_pace", "fleet", "replicas", "max_replicas",
    "slo", "verbose", "store_dir", "store_bytes", "store_seconds", "max_file_bytes",
    "drop_hosted_tools",
    "models_dir", "max_models", "sleep_idle_seconds", "kernel",
}  # fmt: skip
"""Flags that tests of their own look at, that follow from other values, or that are for CI alone or for
machines without Kubernetes."""

ONE_OF = "value must be one of"
OF_THE_SCHEMA: list[tuple[str, Any, str]] = [
    ("instance", "inf9.large", f"at '/instance': {ONE_OF} .*'inf2.xlarge'"),
    ("instnce", "inf2.xlarge", "additional properties 'instnce' not allowed"),
    ("placement.tensr", 2, "at '/placement': additional properties 'tensr' not allowed"),
    ("placement.tensor", 0, "at '/placement/tensor': minimum: got 0, want 1"),
    ("format", "int4", f"at '/format': {ONE_OF} .*'int8'"),
    ("clock", "virtual", f"at '/clock': {ONE_OF} 'host', 'device'"),
    ("batching.blockSize", 17, "at '/batching/blockSize': multipleOf: got 17, want 16"),
    ("fleet.machines", 0, "at '/fleet/machines': minimum: got 0, want 1"),
    ("replicas", "two", "at '/replicas': got string, want integer"),
    ("autoscaling.type", "both", f"at '/autoscaling/type': {ONE_OF} 'none', 'hpa', 'keda'"),
    ("image.digest", "latest", "at '/image/digest': 'latest' does not match pattern"),
    ("resources.limits.memory", "much", "at '/resources/limits/memory': 'much' does not match"),
    ("cache.accessMode", "ReadOnlyMany", f"at '/cache/accessMode': {ONE_OF}"),
    ("tracing.otlpEndpoint", "collector:4317", "at '/tracing/otlpEndpoint': 'collector:4317' does not"),
    ("faults.inject", "429:5", "at '/faults/inject': '429:5' does not match"),
    ("also", [{"name": "a"}, {"name": "a,b", "model": "m"}], "at '/also/0': missing property 'model'"),
    ("also", [{"name": "a,b", "model": "m"}], "at '/also/0/name': 'a,b' does not match pattern"),
    (
        "also",
        [{"name": "a", "model": "m", "options": {"port": 80}}],
        "additional properties 'port' not allowed",
    ),
    ("loadTest.rate", 0, "at '/loadTest/rate': exclusiveMinimum: got 0, want 0"),
    ("loadTest.assertions", ["p99"], "at '/loadTest/assertions/0': 'p99' does not match pattern"),
    ("loadTest.sweep", True, "at '/loadTest': additional properties 'sweep' not allowed"),
]
"""Values that break the schema, and what is said of each."""

FLEET, POOL = {"fleet.enabled": True}, {"inferencePool.enabled": True}
PERSISTENT, EVENTS = {"cache.persistent": True}, {"kvEvents.enabled": True}
OPEN, NO_POLICY = {"allowWithoutKeys": True}, {"networkPolicy.enabled": False}
BY_TEMPLATES: list[tuple[dict[str, Any], str]] = [
    ({"autoscaling.type": ["hpa", "keda"]}, f"at '/autoscaling/type': {ONE_OF}"),
    ({"replicaCount": 2}, "replicaCount: this chart calls it replicas"),
    (
        {"ingress.enabled": True, **OPEN},
        "networkPolicy.from: the policy lets in this namespace alone; add that of the Ingress controller",
    ),
    ({"httpRoute.enabled": True, "httpRoute.parentRefs": [{"name": "g"}], **OPEN}, "networkPolicy.from: "),
    ({**PERSISTENT, "replicas": 2}, "cache.accessMode: .* a claim that is ReadWriteOnce;"),
    (
        {"cache.existingClaim": "c", "cache.accessMode": "ReadWriteOncePod", "replicas": 3},
        "cache.accessMode: .* a claim that is ReadWriteOncePod;",
    ),
    ({**PERSISTENT, "autoscaling.type": "hpa"}, "cache.accessMode: "),
    ({**PERSISTENT, **FLEET}, "cache.accessMode: "),
    ({**FLEET, "replicas": 2}, "fleet.enabled: one front has all machines"),
    ({**FLEET, **EVENTS}, "fleet.enabled: a fleet serves one model"),
    ({**FLEET, "fleet.maxMachines": 1}, "fleet.maxMachines is less than fleet.machines"),
    ({**FLEET, "fleet.slo": "ttft:1s"}, "fleet.slo: machines are added up to"),
    (
        {"faults.inject": "429:5%", "apiKeys.existingSecret": "keys"},
        "faults.withKeys: faults make requests fail",
    ),
    ({"timeScale": 2}, "timeScale: only the device's clock has a scale; set clock: device"),
    ({"ingress.enabled": True}, "apiKeys.existingSecret: .* wants API keys; name a secret"),
    ({"service.type": "LoadBalancer"}, "apiKeys.existingSecret: "),
    ({"httpRoute.enabled": True, **OPEN}, "httpRoute.parentRefs: name the gateway"),
    (
        {"loadTest.rate": 2, "loadTest.concurrency": 3},
        "loadTest.rate is an open loop and loadTest.concurrency a",
    ),
    (POOL, "inferencePool.endpointPicker.name: "),
    ({"autoscaling.type": "keda"}, "autoscaling.keda.prometheusAddress: KEDA asks Prometheus"),
    ({**EVENTS, **NO_POLICY}, "kvEvents.enabled: the events have all prompts' token ids"),
    ({**EVENTS, "batching.prefixCaching": False}, "kvEvents.enabled: there is no prefix cache"),
    (
        {**POOL, "inferencePool.endpointPicker.name": "picker", "also": [{"name": "a", "model": "m"}]},
        "inferencePool.enabled: an endpoint picker reads the metrics of one model",
    ),
    (
        {"metricsPort.enabled": True, "metricsPort.from": [{"podSelector": {}}], **NO_POLICY},
        "metricsPort.from: it is networkPolicy.enabled that lets in nobody else",
    ),
    (
        {"autoscaling.type": "hpa", "autoscaling.minReplicas": 5},
        "autoscaling.minReplicas is more than autoscaling.maxReplicas",
    ),
    ({"ingress.enabled": True, "ingress.tlsSecret": "x", **OPEN}, "ingress.host: a certificate"),
]
"""Values that a template refuses, and what it says."""


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a values file from their dotted keys."""
    together: dict[str, Any] = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        at = together
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    return together


def values_of(keys: Iterable[str]) -> dict[str, Any]:
    """The examples of some values, together."""
    clock = {"clock": "device"} if "timeScale" in keys else {}
    return nested({**clock, **{key: SETTINGS[key][0] for key in keys}})


def as_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Settings of the server that the chart makes of values."""
    given = serve_parameters(rendered(values))
    return {NAMES.get(flag, flag): _read(value) for flag, value in given.items()}


def _read(value: Any) -> Any:
    """The bytes of a text, which the command line leaves to the field's validation; a path's text."""
    if isinstance(value, Path):
        return str(value)
    return int(value) if isinstance(value, str) and value.isdigit() else value


def schema() -> dict[str, Any]:
    return json.loads((CHART / "values.schema.json").read_text())


def schema_of(key: str) -> dict[str, Any]:
    at = schema()
    for part in key.split("."):
        at = at["properties"][part]
        if "$ref" in at:
            at = schema()["$defs"][at["$ref"].rpartition("/")[2]]
    return at


def test_what_breaks_the_schema_is_refused_readably() -> None:
    """All at once, but for one key each time."""
    left = OF_THE_SCHEMA
    while left:
        rows = {key: (key, value, message) for key, value, message in reversed(left)}
        told = refusal(nested({key: value for key, value, _ in rows.values()}))
        assert [message for _, _, message in rows.values() if not re.search(message, told)] == [], told
        left = [row for row in left if row not in rows.values()]


@pytest.mark.parametrize(("values", "message"), BY_TEMPLATES, ids=lambda given: ",".join(given)[:60])
def test_what_a_template_refuses_is_told_readably(values: dict[str, Any], message: str) -> None:
    assert re.search(message, refusal(nested(values)))


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
    asked = also_configs(given["also"], EngineConfig(model="m"), ServerConfig())
    assert [(engine.format, engine.prefix_cache) for engine, _ in asked] == [("fp32", True), ("int8", False)]
    assert serve_parameters(rendered({"also": also, "threads": 3}))["threads"] == 3


def test_the_schema_is_the_one_of_these_settings() -> None:
    text = chart_schema.SCHEMA.read_text()
    assert chart_schema.schema(text) == text
    assert chart_schema.template() == chart_schema.TEMPLATE.read_text()
    options = schema_of("also")["items"]["properties"]["options"]
    assert [*options["properties"]] == [*OWN]


def test_every_flag_of_the_server_is_a_value() -> None:
    flags = {parameter.name for parameter in commands()["serve"].params} - OTHER_FLAGS
    assert {NAMES.get(flag, flag) for flag in flags} == {setting for _, setting in SETTINGS.values()}


def test_the_schema_has_the_bounds_of_settings() -> None:
    assert schema_of("batching.blockSize") == {
        "type": ["integer", "null"],
        "minimum": 16,
        "maximum": 128,
        "multipleOf": 16,
    }
    assert schema_of("timeScale") == {"type": "number", "exclusiveMinimum": 0}
    assert schema_of("task") == {"enum": [None, "auto", "generate", "embed", "classify", "score"]}


def test_the_schema_lists_what_there_is() -> None:
    assert schema_of("instance")["enum"] == [instance.name for instance in INSTANCES]
    assert set(schema_of("format")["enum"]) == FORMATS.keys()
    assert set(get_args(EngineConfig.model_fields["format"].annotation)) == TIMED_FORMATS.keys()
    assert set(schema_of("placement.mode")["enum"]) == set(
        get_args(EngineConfig.model_fields["mode"].annotation)
    )


def test_the_schema_refuses_what_it_does_not_know() -> None:
    def objects(at: object) -> list[dict[str, Any]]:
        inner = at.values() if isinstance(at, dict) else at if isinstance(at, list) else []
        found = [one for value in inner for one in objects(value)]
        is_one = isinstance(at, dict) and "properties" in at and at.get("type") == "object"
        return [*found, at] if is_one else found

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
    for leaf in chart_readme.leaves(default_values()):
        assert any(leaf == key or leaf.startswith(f"{key}.") for key in described), leaf


def test_chart_and_package_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == project["version"]


def plan(**more: Any) -> PlannedDeployment:
    place = Placement(pipeline=1, tensor=2, data=1)
    shape = DeploymentShape("trn1.2xlarge", FORMATS["bf16"], place, profile("nxdi"))
    return PlannedDeployment(Candidate(shape, BatchLimits(4096, 8, 2048)), instances=3)


@pytest.mark.parametrize("weights", [True, False])
def test_what_a_plan_emits_installs_unchanged(weights: bool, tmp_path: Any) -> None:
    emitted = tmp_path / "plan.yaml"
    emitted.write_text(helm_values(PodSettings("llama-3.1-8b", weights, "nxdi", 12.3), plan(), ["a note"]))
    found = parsed(attempt([emitted]))
    given = serve_parameters(found)
    assert of_kind(found, "Deployment")[0]["spec"]["replicas"] == 3
    models = ("llama-3.1-8b", None)
    assert (given["model"], given["timing_model"]) == (models if weights else models[::-1])
    assert (given["instance"], given["dtype"]) == ("trn1.2xlarge", "bf16")
    assert (given["pipeline"], given["tensor"], given["data"]) == (1, 2, 1)
    assert (given["clock"], given["profile"]) == ("device", "nxdi")
    assert (given["max_model_len"], given["max_num_seqs"], given["max_num_batched_tokens"]) == (4096, 8, 2048)


def test_a_plan_names_the_flags_that_the_chart_makes_of_its_values() -> None:
    emitted = yaml.safe_load(
        helm_values(PodSettings("m", weights=True, profile="nxdi", answer_seconds=12.3), plan(), [])
    )
    values = {key: value for key, (value, _) in SETTINGS.items() if key in chart_readme.leaves(emitted)}
    assert {*SETTINGS, "model"} == set(FLAGS)
    assert len(values) > 10
    arguments = container(rendered(values_of(values)))["args"]
    assert {f"{FLAGS[key]}={value}" for key, value in values.items()} <= {*arguments}
