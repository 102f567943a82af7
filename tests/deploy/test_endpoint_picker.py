"""The chart's configuration of llm-d's endpoint picker fits the picker and these servers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
import yaml

from corepipe.engine.config import KVEventsConfig
from tests.deploy import tools
from tests.deploy.charts import (
    CHART,
    NAMESPACE,
    RELEASE,
    Manifest,
    container,
    manifests,
    of_kind,
    rendered,
    serve_parameters,
)
from tests.deploy.crds import ENDPOINT_PICKER_CONFIG, PICKER_PLUGINS

NAME = f"{RELEASE}-corepipe"


def picker(found: Sequence[Manifest]) -> tuple[Manifest, dict[str, Any]]:
    """The configuration for an endpoint picker, and its plugins' parameters by type."""
    (made,) = [
        one for one in of_kind(found, "ConfigMap") if one["metadata"]["name"].endswith("-endpoint-picker")
    ]
    config = yaml.safe_load(made["data"]["endpoint-picker.yaml"])
    plugins = {one["type"]: one.get("parameters", {}) for one in config["plugins"]}
    return config, plugins


POOL = {"inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}}}


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("keys", [False, True])
def test_a_picker_is_told_what_it_has_and_reads(events: bool, keys: bool) -> None:
    """Each reference names a plugin; each plugin is referred to, but for those that find their own place."""
    values = {
        **POOL,
        "kvEvents": {"enabled": events},
        "apiKeys": {"existingSecret": "keys" if keys else None},
        "tls": {"existingSecret": "tls" if keys else None},
    }
    found = rendered(values)
    config, plugins = picker(found)
    assert plugins.keys() <= PICKER_PLUGINS.keys()
    referred = {
        one["pluginRef"]
        for source in config["dataLayer"]["sources"]
        for one in [source, *source["extractors"]]
    } | {one["pluginRef"] for profile in config["schedulingProfiles"] for one in profile["plugins"]}
    assert plugins.keys() - referred <= {"single-profile-handler", "token-producer"}
    assert referred <= plugins.keys()
    ports = {port["name"]: port["containerPort"] for port in container(found)["ports"]}
    assert plugins["metrics-data-source"] == {"scheme": "https" if keys else "http", "port": ports["metrics"]}
    assert ("precise-prefix-cache-producer" in plugins) == (events and not keys)


@pytest.mark.parametrize("block_size", [16, None])
def test_a_picker_follows_events_of_the_servers_own_blocks(block_size: int | None) -> None:
    batching = {"blockSize": block_size}
    values = {**POOL, "kvEvents": {"enabled": True}, "servedModelNames": ["mine"], "batching": batching}
    found = rendered(values)
    _, plugins = picker(found)
    exact = plugins["precise-prefix-cache-producer"]
    assert exact["tokenProcessorConfig"] == {"blockSizeTokens": serve_parameters(found)["block_size"]}
    ports = {port["name"]: port["containerPort"] for port in container(found)["ports"]}
    pods = exact["kvEventsConfig"]["podDiscoveryConfig"]
    assert (pods["socketPort"], pods["replaySocketPort"]) == (ports["kv-events"], ports["kv-replay"])
    (deployment,) = of_kind(found, "Deployment")
    wanted = dict(pair.split("=") for pair in pods["podLabelSelector"].split(","))
    assert wanted.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert pods["podNamespace"] == deployment["metadata"]["namespace"]
    assert plugins["prefix-cache-scorer"] == {"prefixMatchInfoProducerName": "precise-prefix-cache-producer"}
    (service,) = of_kind(found, "Service")
    (port,) = service["spec"]["ports"]
    url = f"http://{service['metadata']['name']}.{service['metadata']['namespace']}.svc:{port['port']}"
    assert plugins["token-producer"] == {"modelName": "mine", "vllm": {"url": url}}
    topic = KVEventsConfig.model_validate_json(serve_parameters(found)["kv_events_config"]).topic
    assert topic.startswith(exact["kvEventsConfig"]["topicFilter"])


def notes(**values: Any) -> str:
    """The notes that are printed on installation."""
    words = [f"{key}={value}" for key, value in values.items()]
    flags = [part for word in words for part in ("--set", word)]
    command = [tools.wanted("helm"), "install", RELEASE, CHART, "--dry-run=client", "--namespace", NAMESPACE]
    done = tools.run([*command, *flags])
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"kvEvents": {"enabled": True}},
        {"kvEvents": {"enabled": True}, "apiKeys": {"existingSecret": "keys"}},
        {"kvEvents": {"enabled": True}, "tls": {"existingSecret": "tls"}},
        {"batching": {"prefixCaching": False}},
    ],
    ids=["sent", "listens", "keys", "tls", "no-cache"],
)
def test_it_is_one_of_llm_d_router(more: dict[str, Any]) -> None:
    made, _ = picker(rendered({**POOL, **more}))
    check = jsonschema.Draft202012Validator(ENDPOINT_PICKER_CONFIG)
    check.validate(made)
    wrong = copy.deepcopy(made)
    wrong["plugins"][0]["parameters"]["unheardOf"] = 1
    assert not check.is_valid(wrong)


def test_nothing_is_scored_by_prefixes_where_there_is_no_prefix_cache() -> None:
    _, plugins = picker(rendered({**POOL, "batching": {"prefixCaching": False}}))
    assert not any("prefix" in name for name in plugins)


def test_it_is_written_where_there_is_a_pool_unless_it_is_not_wanted() -> None:
    assert of_kind(manifests("gateway"), "ConfigMap")
    assert not of_kind(rendered({}), "ConfigMap")
    own = {"enabled": True, "endpointPicker": {"name": "picker", "config": False}}
    assert not of_kind(rendered({"inferencePool": own}), "ConfigMap")


def test_who_installs_a_pool_is_told_what_it_is_without_that() -> None:
    pool = {"inferencePool.enabled": "true", "inferencePool.endpointPicker.name": "picker"}
    keys = {"apiKeys.existingSecret": "keys"}
    own = {"inferencePool.endpointPicker.config": "false"}
    misleads, asked = "the InferencePool misleads", "ConfigMap demo-corepipe-endpoint-picker"
    with_keys = notes(**pool, **keys)
    assert misleads in with_keys
    assert asked in with_keys
    without_ours = notes(**pool, **keys, **own)
    assert misleads in without_ours
    assert asked not in without_ours
    without_keys = notes(**pool)
    assert misleads not in without_keys
    assert "metricsPort.from" in without_keys
    assert "will not listen" in notes(**pool, **keys, **{"kvEvents.enabled": "true"})
    assert "icker" not in notes()
