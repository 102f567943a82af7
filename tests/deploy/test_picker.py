"""The endpoint picker's configuration, as the chart writes it: llm-d-router's, and of these pods."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest
import yaml

from corepipe.serving.config import EngineConfig, KVEventsConfig
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
from tests.deploy.crds import ENDPOINT_PICKER_CONFIG

POOL = {"enabled": True, "endpointPicker": {"name": "picker"}}
KEYS = {"existingSecret": "keys"}
EVENTS = {"enabled": True}
KNOWS = {"inferencePool": POOL, "kvEvents": EVENTS}
GUESSES = {"inferencePool": POOL, "kvEvents": EVENTS, "apiKeys": KEYS}

each_kind = pytest.mark.parametrize(
    "values",
    [KNOWS, GUESSES, {"inferencePool": POOL, "batching": {"prefixCaching": False}}],
    ids=["knows", "guesses", "no-cache"],
)


def config(found: list[Manifest]) -> dict[str, Any]:
    (made,) = (one for one in of_kind(found, "ConfigMap") if one["metadata"]["name"].endswith("-picker"))
    assert made["metadata"]["namespace"] == NAMESPACE
    (text,) = made["data"].values()
    return yaml.safe_load(text)


def plugins(found: list[Manifest]) -> dict[str, dict[str, Any]]:
    """Parameters by type."""
    return {one["type"]: one.get("parameters", {}) for one in config(found)["plugins"]}


def notes(**values: Any) -> str:
    """What is said to who installs it."""
    words = [f"{key}={value}" for key, value in values.items()]
    flags = [part for word in words for part in ("--set", word)]
    command = [tools.wanted("helm"), "install", RELEASE, CHART, "--dry-run=client", "--namespace", NAMESPACE]
    done = tools.run([*command, *flags])
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


@each_kind
def test_it_is_one_of_llm_d_router(values: dict[str, Any]) -> None:
    made = config(rendered(values))
    check = jsonschema.Draft202012Validator(ENDPOINT_PICKER_CONFIG)
    check.validate(made)
    wrong = copy.deepcopy(made)
    wrong["plugins"][1]["parameters"]["unheardOf"] = 1
    assert not check.is_valid(wrong)


@each_kind
def test_what_it_refers_to_is_there_and_nothing_is_there_for_nothing(values: dict[str, Any]) -> None:
    """A producer is referred to by its scorer; what it consumes is found by its kind."""
    found = rendered(values)
    made, declared = config(found), plugins(found)
    (profile,) = made["schedulingProfiles"]
    sources = made["dataLayer"]["sources"]
    named = {one["pluginRef"] for one in (*profile["plugins"], *sources)}
    named |= {one["pluginRef"] for source in sources for one in source["extractors"]}
    named |= {name for each in declared.values() if (name := each.get("prefixMatchInfoProducerName"))}
    assert named <= declared.keys()
    assert declared.keys() - named <= {"single-profile-handler", "token-producer"}


@pytest.mark.parametrize("tls", [False, True])
def test_it_asks_for_metrics_where_no_key_is_wanted(tls: bool) -> None:
    secured = {"tls": {"existingSecret": "certificate"}} if tls else {}
    found = rendered({**GUESSES, **secured})
    asked = plugins(found)["metrics-data-source"]
    ports = {port["name"]: port["containerPort"] for port in container(found)["ports"]}
    assert asked["port"] == ports["metrics"] == serve_parameters(found)["metrics_port"]
    assert asked["scheme"] == ("https" if tls else "http")


@pytest.mark.parametrize("values", [KNOWS, GUESSES])
@pytest.mark.parametrize("told", [None, 64])
def test_it_hashes_blocks_of_the_pods_size(values: dict[str, Any], told: int | None) -> None:
    found = rendered({**values, "batching": {"blockSize": told}})
    served = serve_parameters(found)["block_size"] or EngineConfig.model_fields["block_size"].default
    producers = [each for name, each in plugins(found).items() if name.endswith("-cache-producer")]
    (producer,) = producers
    assert producer.get("tokenProcessorConfig", producer)["blockSizeTokens"] == served


def test_it_listens_where_the_pods_tell_of_their_caches() -> None:
    found = rendered({**KNOWS, "servedModelNames": ["mine"]})
    told = KVEventsConfig.model_validate_json(serve_parameters(found)["kv_events_config"])
    listens = plugins(found)["precise-prefix-cache-producer"]["kvEventsConfig"]
    places = listens["podDiscoveryConfig"]
    assert listens["discoverPods"]
    assert told.topic.startswith(listens["topicFilter"])
    assert told.endpoint == f"tcp://*:{places['socketPort']}"
    assert told.replay_endpoint == f"tcp://*:{places['replaySocketPort']}"
    tokens = plugins(found)["token-producer"]
    assert told.topic.endswith(f"@{tokens['modelName']}")
    service = of_kind(found, "Service")[0]
    (port,) = service["spec"]["ports"]
    assert tokens["vllm"]["url"] == f"http://{service['metadata']['name']}.{NAMESPACE}.svc:{port['port']}"


@pytest.mark.parametrize(
    "more", [{"apiKeys": KEYS}, {"tls": {"existingSecret": "x"}}, {"kvEvents": {"enabled": False}}]
)
def test_where_it_cannot_ask_for_tokens_it_goes_by_what_it_has_sent_where(more: dict[str, Any]) -> None:
    found = plugins(rendered({**KNOWS, **more}))
    assert "approx-prefix-cache-producer" in found
    assert not {"precise-prefix-cache-producer", "token-producer"} & found.keys()


def test_nothing_is_said_of_prefixes_where_there_is_no_prefix_cache() -> None:
    found = plugins(rendered({"inferencePool": POOL, "batching": {"prefixCaching": False}}))
    assert not any("prefix" in name for name in found)


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
    assert misleads in notes(**pool, **keys)
    assert asked in notes(**pool, **keys)
    assert misleads in notes(**pool, **keys, **own)
    assert asked not in notes(**pool, **keys, **own)
    assert misleads not in notes(**pool)
    assert "metricsPort.from" in notes(**pool)
    assert "will not listen" in notes(**pool, **keys, **{"kvEvents.enabled": "true"})
    assert "icker" not in notes()
