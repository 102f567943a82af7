"""The chart, rendered by Helm itself, is what Kubernetes and the server take."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import pytest

from corepipe.cli.flags.settings import settings_of
from corepipe.engine.config import EngineConfig, KVEventsConfig
from corepipe.serving.api.app import LAST_WORDS_SECONDS
from corepipe.serving.api.http.ports import check_bind
from corepipe.serving.api.routes.route import Audience
from corepipe.serving.api.table import KEYLESS_PATHS, ROUTES
from corepipe.serving.config import ServerConfig
from tests.deploy import tools
from tests.deploy.charts import (
    CASES,
    CHART,
    NAMESPACE,
    RELEASE,
    container,
    manifests,
    of_kind,
    pod_spec,
    read,
    rendered,
    serve_parameters,
    template,
    values_file,
)
from tests.deploy.kubernetes import CUSTOM, MINORS, refuse

each_case = pytest.mark.parametrize("case", CASES)


MOST = {"autoscaled", "fleet", "full", "gateway", "tested", "watched"}
"""Cases that leave no template out."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in MOST else pytest.mark.slow) for case in CASES]
)
def test_lint_finds_nothing(case: str) -> None:
    done = tools.run([tools.wanted("helm"), "lint", "--strict", CHART, "--values", values_file(case)])
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


def test_few_cases_have_each_template() -> None:
    def used(cases: Iterable[str]) -> set[str]:
        texts = [template(values_file(case)) for case in cases]
        return {name for text in texts for name in re.findall(r"^# Source: (\S+)", text, re.M)}

    assert used(MOST) == used(CASES)


def test_kubernetes_knows_every_field() -> None:
    found = {json.dumps(one): one for case in CASES for one in manifests(case)}
    core = [one for one in found.values() if not one["apiVersion"].startswith(CUSTOM)]
    assert [told for minor in MINORS for one in core for told in refuse(one, minor)] == []


def test_an_unknown_field_would_be_found() -> None:
    wrong = template(values_file("default")).replace("enableServiceLinks:", "enableServiceLink:")
    (deployment,) = of_kind(read(wrong), "Deployment")
    (told,) = refuse(deployment, MINORS[-1])
    assert "enableServiceLink" in told


@pytest.mark.parametrize(
    ("values", "strategy"),
    [
        ({}, "RollingUpdate"),
        ({"replicas": 3}, "RollingUpdate"),
        ({"cache": {"persistent": True}}, "Recreate"),
        ({"cache": {"persistent": True, "accessMode": "ReadWriteOncePod"}}, "Recreate"),
        ({"cache": {"existingClaim": "models"}}, "Recreate"),
        ({"cache": {"persistent": True}, "autoscaling": {"type": "hpa", "maxReplicas": 1}}, "Recreate"),
        ({"cache": {"persistent": True, "accessMode": "ReadWriteMany"}, "replicas": 2}, "RollingUpdate"),
        ({"cache": {"existingClaim": "models", "accessMode": "ReadWriteMany"}}, "RollingUpdate"),
        ({"cache": {"accessMode": "ReadWriteOncePod"}, "replicas": 2}, "RollingUpdate"),
    ],
)
def test_an_update_waits_for_no_claim_of_the_pod_that_it_replaces(values, strategy) -> None:
    (deployment,) = of_kind(rendered(values), "Deployment")
    assert deployment["spec"]["strategy"]["type"] == strategy
    assert ("rollingUpdate" in deployment["spec"]["strategy"]) == (strategy == "RollingUpdate")


@each_case
def test_the_server_takes_its_arguments(case: str) -> None:
    found = manifests(case)
    given = serve_parameters(found)
    assert "command" not in container(found)  # the image's entry point
    names = settings_of(EngineConfig)
    settings = {names.get(flag, flag): value for flag, value in given.items()}
    of_engine = {k: v for k, v in settings.items() if v is not None and k in EngineConfig.model_fields}
    EngineConfig.model_validate(of_engine | {"model": given["model"] or "default"})
    env = {one["name"] for one in container(found)["env"]}
    names = {"api_keys": "COREPIPE_API_KEY", "admin_api_keys": "COREPIPE_ADMIN_API_KEY"}
    keys = {field: ("from the secret",) if name in env else () for field, name in names.items()}
    bound = ("host", "admin_host", "admin_port", "metrics_host", "metrics_port", "insecure")
    served = {name: given[name] for name in bound}
    check_bind(ServerConfig.model_validate(served | keys))
    assert bool(keys["api_keys"]) != given["insecure"]


def scheme(case: str) -> str:
    return "http" if serve_parameters(manifests(case))["ssl_certfile"] is None else "https"


@each_case
def test_probes_ask_for_what_the_server_answers_without_a_key(case: str) -> None:
    served = container(manifests(case))
    port = served["ports"][0]
    assert port["containerPort"] == serve_parameters(manifests(case))["port"]
    asked = {kind: served[kind] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    paths = {}
    for kind, probe in asked.items():
        if "exec" in probe:
            *command, url = probe["exec"]["command"]
            assert command == ["python3", "-m", "corepipe.probe"]
            paths[kind] = url.removeprefix(f"{scheme(case)}://127.0.0.1:{port['containerPort']}")
        else:
            assert probe["httpGet"]["port"] == port["name"]
            paths[kind] = probe["httpGet"]["path"]
            assert probe["httpGet"].get("scheme", "HTTP") == scheme(case).upper()
    assert set(paths.values()) <= KEYLESS_PATHS
    assert [*paths.values()] == ["/health", "/health/live", "/health/ready"]


@each_case
def test_a_pod_has_time_to_end(case: str) -> None:
    found = manifests(case)
    lifecycle = container(found).get("lifecycle", {"preStop": {"sleep": {"seconds": 0}}})
    drain = serve_parameters(found)["shutdown_timeout"] + LAST_WORDS_SECONDS
    grace = pod_spec(found)["terminationGracePeriodSeconds"]
    assert grace > lifecycle["preStop"]["sleep"]["seconds"] + drain


VOLUMES = {"name", "emptyDir", "configMap", "persistentVolumeClaim", "secret"}


@each_case
def test_every_pod_passes_restricted_pod_security(case: str) -> None:
    found = manifests(case)
    jobs = [job["spec"]["template"]["spec"] for job in of_kind(found, "Job")]
    pods = [pod_spec(found), *(pod["spec"] for pod in of_kind(found, "Pod")), *jobs]
    assert len(pods) == 2 + len(jobs)  # the server's, the test hook's, and a load test's
    for pod in pods:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert {kind for volume in pod.get("volumes", []) for kind in volume} <= VOLUMES
        for one in pod["containers"]:
            context = one["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert one["resources"]["requests"]["memory"] == one["resources"]["limits"]["memory"]


@each_case
def test_selectors_find_the_servers_pods_alone(case: str) -> None:
    found = manifests(case)
    (deployment,) = of_kind(found, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    others = [*of_kind(found, "Pod"), *(job["spec"]["template"] for job in of_kind(found, "Job"))]
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        of_kind(found, "Service")[0]["spec"]["selector"],
    ]
    for kind in ("PodDisruptionBudget", "NetworkPolicy", "InferencePool"):
        for one in of_kind(found, kind):
            if one["metadata"]["name"].endswith("-fleet"):
                continue  # of pods that do not serve: test_fleet_chart.py
            selectors.append((one["spec"].get("selector") or one["spec"]["podSelector"])["matchLabels"])
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not any(selector.items() <= other["metadata"]["labels"].items() for other in others)


@each_case
def test_every_object_is_named_and_labelled_for_its_release(case: str) -> None:
    names = set()
    for manifest in manifests(case):
        metadata = manifest["metadata"]
        assert metadata["namespace"] == NAMESPACE
        assert metadata["labels"]["app.kubernetes.io/instance"] == RELEASE
        names.add((manifest["kind"], metadata["name"]))
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", metadata["name"])
    assert len(names) == len(manifests(case))


def test_a_long_release_name_stays_a_name() -> None:
    long = rendered({"fullnameOverride": "a" * 52, "chatTemplate": "x", "dashboards": {"enabled": True}})
    assert all(len(manifest["metadata"]["name"]) <= 68 for manifest in long)
    (service,) = of_kind(long, "Service")
    assert len(service["metadata"]["name"]) <= 63


def test_what_is_mounted_is_there_and_the_other_way_round() -> None:
    for case in CASES:
        found = manifests(case)
        mounts = container(found)["volumeMounts"]
        assert {m["name"] for m in mounts} == {v["name"] for v in pod_spec(found)["volumes"]}, case
        cache = {e["name"]: e.get("value") for e in container(found)["env"]}["COREPIPE_CACHE"]
        assert f"{cache}/packed" in {m["mountPath"] for m in mounts}
        for volume in pod_spec(found)["volumes"]:
            claim = volume.get("persistentVolumeClaim", {}).get("claimName", "models")
            config = volume.get("configMap", {}).get("name")
            made = {(m["kind"], m["metadata"]["name"]) for m in found}
            assert claim == "models" or ("PersistentVolumeClaim", claim) in made
            assert config is None or ("ConfigMap", config) in made


def test_a_model_of_the_image_is_not_mounted_over() -> None:
    def mounted(case: str) -> set[str]:
        return {mount["mountPath"] for mount in container(manifests(case))["volumeMounts"]}

    assert mounted("default") - mounted("offline") == {"/var/cache/corepipe/models"}
    assert not any("/var/cache/corepipe/models".startswith(path) for path in mounted("offline"))


def test_only_who_fetches_may_leave() -> None:
    def ports(*, model: str | None, includes: bool) -> set[int]:
        found = rendered({"model": model, "image": {"includesModel": includes}})
        (policy,) = of_kind(found, "NetworkPolicy")
        return {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}

    assert ports(model=None, includes=False) == {53, 443}
    assert ports(model=None, includes=True) == {53}
    assert ports(model="/models/llama", includes=False) == {53}
    assert ports(model="org/name", includes=True) == {53, 443}


def test_autoscaling_owns_the_number_of_pods() -> None:
    kinds = {"autoscaled": "HorizontalPodAutoscaler", "watched": "ScaledObject"}
    for case, kind in kinds.items():
        found = manifests(case)
        (deployment,) = of_kind(found, "Deployment")
        (scaler,) = of_kind(found, kind)
        assert "replicas" not in deployment["spec"]
        assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
        assert [m["kind"] for m in found if m["kind"] in kinds.values()] == [kind]
    assert of_kind(manifests("planned"), "Deployment")[0]["spec"]["replicas"] == 2


def test_prometheus_sends_the_key_that_the_secret_holds_for_it() -> None:
    found = manifests("watched")
    (monitor,) = of_kind(found, "ServiceMonitor")
    (service,) = of_kind(found, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    endpoints = monitor["spec"]["endpoints"]
    assert [endpoint["path"] for endpoint in endpoints] == ["/metrics", "/metrics/neuron"]
    for endpoint in endpoints:
        assert endpoint["authorization"]["credentials"] == {"name": "corepipe-keys", "key": "prometheus"}
        assert endpoint["path"] in {one.path for one in ROUTES} - KEYLESS_PATHS
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_neuron_monitors_names_may_be_left_out() -> None:
    found = rendered({"serviceMonitor": {"enabled": True, "neuron": False}})
    (monitor,) = of_kind(found, "ServiceMonitor")
    assert [endpoint["path"] for endpoint in monitor["spec"]["endpoints"]] == ["/metrics"]


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://collector.monitoring:4318/v1/traces", 4318),
        ("http://collector", 80),
        ("https://traces.example.org/otlp", 443),
    ],
)
def test_spans_may_leave_for_their_collector(url: str, port: int) -> None:
    (policy,) = of_kind(rendered({"tracing": {"otlpEndpoint": url}}), "NetworkPolicy")
    open_to = [rule["ports"] for rule in policy["spec"]["egress"]]
    assert [{"port": port, "protocol": "TCP"}] in open_to


def test_the_admin_port_is_for_prometheus_alone() -> None:
    found = manifests("guarded")
    given = serve_parameters(found)
    public, admin = of_kind(found, "Service")
    names = {port["name"]: port["containerPort"] for port in container(found)["ports"]}
    assert names == {"http": given["port"], "admin": given["admin_port"]}
    targets = [[port["targetPort"] for port in one["spec"]["ports"]] for one in (public, admin)]
    assert targets == [["http"], ["admin"]]
    assert admin["spec"]["type"] == "ClusterIP"
    (monitor,) = of_kind(found, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert wanted <= admin["metadata"]["labels"].items()
    assert not wanted <= public["metadata"]["labels"].items()
    endpoints = monitor["spec"]["endpoints"]
    assert {(one["port"], one["scheme"]) for one in endpoints} == {("admin", "https")}
    watched = {one.path for one in ROUTES if one.audience is Audience.WATCHERS}
    assert {one["path"] for one in endpoints} <= watched
    key = endpoints[0]["authorization"]["credentials"]
    (env,) = [one for one in container(found)["env"] if one["name"] == "COREPIPE_ADMIN_API_KEY"]
    assert env["valueFrom"]["secretKeyRef"] == key
    (policy,) = of_kind(found, "NetworkPolicy")
    rules = {rule["ports"][0]["port"]: rule["from"] for rule in policy["spec"]["ingress"]}
    assert len(rules["admin"]) == 2
    assert rules["http"] == [{"podSelector": {}}]


@pytest.mark.parametrize("admin", [False, True])
def test_a_picker_reads_metrics_where_no_key_is_wanted(admin: bool) -> None:
    """Beside keys and an admin port; who else may come to that port is said by its own peers alone."""
    picker = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}
    found = rendered(
        {
            "apiKeys": {"existingSecret": "keys"},
            "inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}},
            "adminPort": {"enabled": admin},
            "metricsPort": {"from": [picker]},
        }
    )
    given = serve_parameters(found)
    ports = {port["name"]: port["containerPort"] for port in container(found)["ports"]}
    assert ports["metrics"] == given["metrics_port"] == 8002
    assert given["metrics_host"] == given["host"]
    (policy,) = of_kind(found, "NetworkPolicy")
    rules = {rule["ports"][0]["port"]: rule["from"] for rule in policy["spec"]["ingress"]}
    assert rules["metrics"] == [{"podSelector": {}}, picker]
    assert all(picker not in rules[name] for name in rules.keys() - {"metrics"})
    exposed = [port["targetPort"] for one in of_kind(found, "Service") for port in one["spec"]["ports"]]
    assert "metrics" not in exposed
    assert serve_parameters(rendered({}))["metrics_port"] is None
    assert serve_parameters(rendered({"metricsPort": {"enabled": True}}))["metrics_port"] == 8002


def test_events_of_the_cache_are_for_their_peers_alone() -> None:
    picker = {"podSelector": {"matchLabels": {"app": "picker"}}}
    found = rendered({"kvEvents": {"enabled": True, "from": [picker]}, "servedModelNames": ["mine"]})
    asked = KVEventsConfig.model_validate_json(serve_parameters(found)["kv_events_config"])
    assert asked.publishes
    assert asked.topic == "kv@$(POD_IP):8000@mine"
    (address,) = [one for one in container(found)["env"] if one["name"] == "POD_IP"]
    assert address["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    ports = {port["name"]: port["containerPort"] for port in container(found)["ports"]}
    assert asked.endpoint == f"tcp://*:{ports['kv-events']}"
    assert asked.replay_endpoint == f"tcp://*:{ports['kv-replay']}"
    (policy,) = of_kind(found, "NetworkPolicy")
    rules = {rule["ports"][0]["port"]: rule for rule in policy["spec"]["ingress"]}
    assert [port["port"] for port in rules["kv-events"]["ports"]] == ["kv-events", "kv-replay"]
    assert rules["kv-events"]["from"] == [{"podSelector": {}}, picker]
    assert picker not in rules["http"]["from"]
    exposed = [port["targetPort"] for one in of_kind(found, "Service") for port in one["spec"]["ports"]]
    assert exposed == ["http"]
    assert serve_parameters(rendered({}))["kv_events_config"] is None


def test_the_key_of_the_certificate_is_mounted_where_the_server_reads_it() -> None:
    found = manifests("guarded")
    given = serve_parameters(found)
    (mount,) = [one for one in container(found)["volumeMounts"] if one["name"] == "tls"]
    (volume,) = [one for one in pod_spec(found)["volumes"] if one["name"] == "tls"]
    for flag, entry in {"ssl_certfile": "tls.crt", "ssl_keyfile": "tls.key"}.items():
        assert str(given[flag]) == f"{mount['mountPath']}/{entry}"
    assert volume["secret"] == {"secretName": "corepipe-tls", "defaultMode": 0o440}, "not for everyone"


@pytest.mark.parametrize(
    ("limit", "threads"), [("2", 2), (3, 3), ("500m", 1), ("1500m", 2), ("1.5", 2), (None, None)]
)
def test_threads_are_the_cpu_limit(limit: str | int | None, threads: int | None) -> None:
    assert serve_parameters(rendered({"resources": {"limits": {"cpu": limit}}}))["threads"] == threads
    assert serve_parameters(manifests("full"))["threads"] == 4, "unless they are told"


def test_the_secret_may_hold_several_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREPIPE_API_KEY", "first second\n")
    assert serve_parameters(manifests("autoscaled"))["api_key"] == ["first", "second"]


def test_the_route_leads_to_the_pool_if_there_is_one() -> None:
    def backend(case: str) -> tuple[str, str]:
        (route,) = of_kind(manifests(case), "HTTPRoute")
        ((only,),) = [rule["backendRefs"] for rule in route["spec"]["rules"]]
        return only.get("kind", "Service"), only["name"]

    for case, kind in {"gateway": "InferencePool", "route": "Service"}.items():
        assert backend(case) == (kind, of_kind(manifests(case), kind)[0]["metadata"]["name"])


def test_the_hook_asks_the_service() -> None:
    for case in CASES:
        found = manifests(case)
        (hook,) = of_kind(found, "Pod")
        service = of_kind(found, "Service")[0]
        (port,) = service["spec"]["ports"]
        (asking,) = hook["spec"]["containers"]
        (url,) = asking["args"]
        assert asking["command"] == ["python3", "-m", "corepipe.probe"]
        assert hook["metadata"]["annotations"]["helm.sh/hook"] == "test"
        assert url == f"{scheme(case)}://{service['metadata']['name']}.{NAMESPACE}.svc:{port['port']}/health"
