"""The chart's fleet: what KubeRay makes of it is what `corepipe fleet` needs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.charts import (
    NAMESPACE,
    Manifest,
    commands,
    container,
    manifests,
    of_kind,
    pod_spec,
    rendered,
    serve_parameters,
)
from tests.deploy.kubernetes import MINORS, refuse

HEAD = "demo-corepipe-head-svc:6379"
"""KubeRay calls a cluster's head Service CLUSTER-head-svc."""


def cluster() -> Manifest:
    (found,) = of_kind(manifests("fleet"), "RayCluster")
    return found


def templates() -> dict[str, dict[str, Any]]:
    """Those of the head and of the machines."""
    spec = cluster()["spec"]
    (machines,) = spec["workerGroupSpecs"]
    return {"head": spec["headGroupSpec"]["template"], "machine": machines["template"]}


def beside() -> dict[str, Any]:
    """Ray in the server's pod."""
    (found,) = pod_spec(manifests("fleet"))["initContainers"]
    return found


def asked(args: list[str]) -> dict[str, Any]:
    """Parses arguments as a command of `corepipe fleet` does; fails on one that it does not take."""
    fleet, command, *arguments = args
    found = commands()[fleet].commands[command]
    return {"command": command, **found.make_context(command, list(arguments)).params}


def test_a_head_and_machines_start_as_the_command_line_does() -> None:
    assert cluster()["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    told = {name: one["spec"]["containers"][0] for name, one in templates().items()}
    assert [one["command"] for one in told.values()] == [["tini", "-e", "143", "--", "corepipe"]] * 2
    assert asked(told["head"]["args"]) == {"command": "head", "host": "$(POD_IP)", "port": 6379}
    joins = {"command": "join", "address": HEAD, "host": "$(POD_IP)", "name": None}
    assert asked(told["machine"]["args"]) == {**joins, "front": False}
    assert asked(beside()["args"]) == {**joins, "front": True}
    assert beside()["restartPolicy"] == "Always", "it runs beside the server, not before it"
    assert [port["containerPort"] for port in told["head"]["ports"]] == [6379]


def test_the_server_is_the_front_of_as_many_machines_as_there_are_pods() -> None:
    given = serve_parameters(manifests("fleet"))
    fleet = {name: given[name] for name in ("fleet", "replicas", "max_replicas", "slo")}
    assert fleet == {"fleet": HEAD, "replicas": 2, "max_replicas": 4, "slo": "ttft:1s tpot:100ms"}
    (machines,) = cluster()["spec"]["workerGroupSpecs"]
    assert [machines[name] for name in ("replicas", "minReplicas", "maxReplicas")] == [4, 4, 4]
    few = rendered({"fleet": {"maxMachines": None, "slo": None}}, "fleet")
    (found,) = of_kind(few, "RayCluster")
    assert found["spec"]["workerGroupSpecs"][0]["replicas"] == serve_parameters(few)["replicas"] == 2


def test_one_front_alone_has_the_machines() -> None:
    """A second one, as in a rolling update, would wait for them for ever."""
    (deployment,) = of_kind(manifests("fleet"), "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_the_server_finds_ray_beside_it() -> None:
    """Ray's sockets are in /tmp, and it asks whether processes live that it knows by number."""
    spec = pod_spec(manifests("fleet"))
    assert spec["shareProcessNamespace"] is True
    for path in ("/tmp", "/dev/shm"):
        names = [
            {mount["name"] for mount in one["volumeMounts"] if mount["mountPath"] == path}
            for one in (container(manifests("fleet")), beside())
        ]
        assert names[0] == names[1] != set()


@pytest.mark.parametrize("secret", ["ray-token", None])
def test_all_of_them_have_one_token(secret: str | None) -> None:
    """The token of the secret; without one KubeRay makes a secret with the cluster's name."""
    found = rendered({"fleet": {"tokenSecret": secret}}, "fleet")
    (made,) = of_kind(found, "RayCluster")
    named = {} if secret is None else {"secretName": secret}
    assert made["spec"]["authOptions"] == {"mode": "token", **named}
    spec = made["spec"]
    pods = [spec["headGroupSpec"]["template"]["spec"], spec["workerGroupSpecs"][0]["template"]["spec"]]
    ones = [container(found), *pod_spec(found)["initContainers"], *(pod["containers"][0] for pod in pods)]
    for one in ones:
        env = {each["name"]: each for each in one["env"]}
        assert env["RAY_AUTH_MODE"]["value"] == "token"
        key = {"name": secret or made["metadata"]["name"], "key": "auth_token"}
        assert env["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == key


def test_nobody_but_the_fleet_reaches_the_fleet() -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind(manifests("fleet"), "NetworkPolicy")}
    front, machines = policies["demo-corepipe"], policies["demo-corepipe-fleet"]
    labels = [one["metadata"]["labels"] for one in templates().values()]
    (deployment,) = of_kind(manifests("fleet"), "Deployment")
    served = deployment["spec"]["template"]["metadata"]["labels"]
    chosen = machines["podSelector"]["matchLabels"]
    assert all(chosen.items() <= each.items() for each in labels)
    assert not chosen.items() <= served.items()
    (rule,) = machines["ingress"]
    peers = [peer["podSelector"]["matchLabels"] for peer in rule["from"]]
    assert peers == [chosen, front["podSelector"]["matchLabels"]]
    assert machines["egress"][0]["to"] == rule["from"]
    assert {"from": [{"podSelector": {"matchLabels": chosen}}]} in front["ingress"]
    assert {"to": [{"podSelector": {"matchLabels": chosen}}]} in front["egress"]
    (service,) = of_kind(manifests("fleet"), "Service")
    assert not any(service["spec"]["selector"].items() <= each.items() for each in labels)


def test_every_pod_of_it_passes_restricted_pod_security() -> None:
    for one in templates().values():
        spec = one["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        mounts = {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
        assert mounts == {volume["name"] for volume in spec["volumes"]}
    for one in (beside(), *(each["spec"]["containers"][0] for each in templates().values())):
        context = one["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert one["resources"]["requests"]["memory"] == one["resources"]["limits"]["memory"]


def test_kubernetes_knows_every_field_of_its_pods() -> None:
    pods = [{"apiVersion": "v1", "kind": "Pod", **one} for one in templates().values()]
    assert [told for minor in MINORS for pod in pods for told in refuse(pod, minor)] == []


def test_it_is_in_the_release_s_namespace() -> None:
    assert cluster()["metadata"]["namespace"] == NAMESPACE
    assert not of_kind(manifests("default"), "RayCluster")
