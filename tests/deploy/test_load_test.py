"""The Job that `helm test` runs puts load on the release's own Service, with flags that the command takes."""

from __future__ import annotations

from typing import Any

from corepipe.bench.assertions import Assertion
from corepipe.bench.report import KEYS
from corepipe.workload.slo import Slo
from tests.deploy.charts import NAMESPACE, Manifest, manifests, of_kind, parameters, rendered


def job(found: list[Manifest]) -> Manifest:
    (only,) = of_kind(found, "Job")
    return only


def asked(found: list[Manifest]) -> dict[str, Any]:
    (bench,) = job(found)["spec"]["template"]["spec"]["containers"]
    assert bench["args"][0] == "bench"
    return parameters(bench["args"])


def test_there_is_none_unless_it_is_asked_for() -> None:
    assert not of_kind(manifests("default"), "Job")


def test_it_asks_the_service_with_the_key_of_the_secret() -> None:
    found = manifests("tested")
    (service,) = of_kind(found, "Service")
    (port,) = service["spec"]["ports"]
    assert asked(found)["url"] == f"http://{service['metadata']['name']}.{NAMESPACE}.svc:{port['port']}"
    (bench,) = job(found)["spec"]["template"]["spec"]["containers"]
    (variable,) = bench["env"]
    assert variable["name"] == "COREPIPE_API_KEY"
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "corepipe-keys", "key": "api-keys"}


def test_values_are_flags() -> None:
    given = asked(manifests("tested"))
    shown = {name: getattr(given[name], "value", given[name]) for name in ("api", "rate", "duration", "slo")}
    assert shown == {"api": "chat", "rate": "2", "duration": 120.0, "slo": "ttft:1s tpot:100ms"}
    assert (given["input_len"], given["output_len"]) == ("lognormal:200:0.5:400", "64")
    assert (given["warmup"], given["wait"], given["concurrency"]) == (4, 60.0, None)
    Slo.parse(given["slo"])
    for text in given["assertions"]:
        Assertion.parse(text).check(KEYS)


def test_numbers_may_be_numbers() -> None:
    given = asked(rendered({"loadTest": {"inputLen": 64, "rate": "1..8", "duration": 0.5}}, "tested"))
    assert (given["input_len"], given["rate"], given["duration"]) == ("64", "1..8", 0.5)


def test_a_sweep_by_further_flags() -> None:
    more = {"enabled": True, "extraArgs": ["--sweep"], "assertions": ["saturation_request_rate>1"]}
    given = asked(rendered({"loadTest": more}))
    assert given["sweep"] is True
    assert {given[name] for name in ("rate", "concurrency", "requests")} == {None}


def test_it_is_a_hook_that_runs_once() -> None:
    found = job(manifests("tested"))
    notes = found["metadata"]["annotations"]
    assert notes["helm.sh/hook"] == "test"
    assert notes["helm.sh/hook-delete-policy"] == "before-hook-creation"
    assert found["spec"]["backoffLimit"] == 0
    assert found["spec"]["template"]["spec"]["restartPolicy"] == "Never"
