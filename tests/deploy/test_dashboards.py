"""Dashboards and alerts ask for series that a running server shows, with labels that these have."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy import tools
from tests.deploy.charts import CHART, NAMESPACE, RELEASE, manifests, of_kind
from tests.servers import TINY, served

DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
TARGET = {"namespace", "service", "pod"}
"""Labels that a ServiceMonitor gives every series."""

METRIC = re.compile(r"\b(?:vllm:|corepipe_|http_|process_)\w+")
SELECTOR = re.compile(r"\b((?:vllm:|corepipe_|http_|process_)\w+)\{([^}]*)\}")
GROUPING = re.compile(r"\b(?:by|on|without|ignoring) ?\(([^)]*)\)")
VARIABLES = {
    "$__rate_interval": "5m",
    "$namespace": "serving",
    "$service": "demo",
    "$price_share": "0.5",
    "$unit": "tensor",
}


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    return (panel for panel in dashboard["panels"] if panel["type"] != "row")


def dashboard_expressions() -> list[str]:
    found = [json.loads(path.read_text()) for path in DASHBOARDS]
    return [target["expr"] for one in found for panel in panels(one) for target in panel["targets"]]


def rules() -> list[dict[str, Any]]:
    (manifest,) = of_kind(manifests("watched"), "PrometheusRule")
    return [rule for group in manifest["spec"]["groups"] for rule in group["rules"]]


def queries() -> list[str]:
    (scaler,) = of_kind(manifests("watched"), "ScaledObject")
    (trigger,) = scaler["spec"]["triggers"]
    return [*dashboard_expressions(), *(rule["expr"] for rule in rules()), trigger["metadata"]["query"]]


def plain(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


@cache
def live() -> Mapping[str, set[str]]:
    """Series of a server after a small load -> their labels."""
    with served(TINY, "--served-model-name", "tiny") as server:
        prompt = "a prompt that is long enough for more than one block of the cache " * 3
        for _ in range(2):
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "ignore_eos": True}
            assert server.post("/v1/completions", json=body).status_code == 200
        assert server.post("/v1/completions", json={"model": "no"}).status_code >= 400
        text = server.get("/metrics").text
    labels: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels[sample.name] |= set(sample.labels)
    return labels


def test_every_series_is_one_of_a_live_server() -> None:
    named = {name for query in queries() for name in METRIC.findall(query)}
    assert len(named) > 30
    assert named - set(live()) == set()


def test_every_label_is_one_of_its_series() -> None:
    for query in queries():
        for name, matchers in SELECTOR.findall(query):
            used = set(re.findall(r"(\w+)\s*[=!]", matchers))
            assert used <= live()[name] | TARGET, query
            assert {"namespace", "service"} <= used, query
        known = set().union(*(live()[name] for name in METRIC.findall(query))) | TARGET
        grouped = {label.strip() for labels in GROUPING.findall(query) for label in labels.split(",")}
        assert grouped <= known, query


def test_legends_name_labels_that_are_left() -> None:
    for path in DASHBOARDS:
        for panel in panels(json.loads(path.read_text())):
            for target in panel["targets"]:
                shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                grouped = [set(re.split(r",\s*", labels)) for labels in GROUPING.findall(target["expr"])]
                own = live()[METRIC.findall(target["expr"])[0]] | TARGET
                left = set().union(*grouped) if grouped else own
                assert shown <= left, target


def test_promql_parses(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (it comes with Prometheus)")
    recorded = [{"record": f"query:{at}", "expr": plain(query)} for at, query in enumerate(queries())]
    groups = [{"name": "queries", "rules": recorded}, {"name": "alerts", "rules": rules()}]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    done = tools.run([promtool, "check", "rules", "--lint=none", tmp_path / "rules.yaml"])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_whole(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    assert dashboard["uid"] == f"corepipe-{path.stem}"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [
        (x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < 24
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(dashboard)))
    assert used == variables


def test_what_is_emulated_is_said_to_be() -> None:
    device = json.loads((CHART / "dashboards" / "device.json").read_text())
    assert "emulated" in device["title"]
    assert "not measured" in device["panels"][0]["title"]
    serving = [plain(q) for q in METRIC.findall((CHART / "dashboards" / "serving.json").read_text())]
    assert not [name for name in serving if "device" in name]


def test_dashboards_are_in_config_maps_for_grafana() -> None:
    found = of_kind(manifests("watched"), "ConfigMap")
    maps = [one for one in found if one["metadata"]["labels"].get("grafana_dashboard")]
    shipped = {name: json.loads(text) for one in maps for name, text in one["data"].items()}
    assert shipped == {f"corepipe-{path.name}": json.loads(path.read_text()) for path in DASHBOARDS}


def test_alerts_are_of_this_release() -> None:
    for rule in rules():
        selectors = SELECTOR.findall(rule["expr"])
        own = f'namespace="{NAMESPACE}",service="{RELEASE}-corepipe"'
        assert selectors
        assert all(own in matchers for _, matchers in selectors)
