"""What the chart writes for llm-d's endpoint picker is what it has, and what these servers publish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from corepipe.serving.config import KVEventsConfig
from tests.deploy.charts import RELEASE, Manifest, container, of_kind, rendered, serve_parameters

NAME = f"{RELEASE}-corepipe"

PICKERS_PLUGINS = {
    "metrics-data-source",
    "core-metrics-extractor",
    "queue-scorer",
    "kv-cache-utilization-scorer",
    "prefix-cache-scorer",
    "max-score-picker",
    "single-profile-handler",
    "token-producer",
    "endpoint-notification-source",
    "precise-prefix-cache-producer",
}
"""Types that llm-d-router has, of those that are of use here (pkg/epp/framework/plugins)."""


def picker(found: Sequence[Manifest]) -> tuple[Manifest, dict[str, Any]]:
    """What is written for an endpoint picker, and its plugins' parameters by type."""
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
    assert plugins.keys() <= PICKERS_PLUGINS
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
