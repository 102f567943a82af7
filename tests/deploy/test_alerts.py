"""Each alert fires where it should and keeps quiet where it should, by promtool's own evaluation."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import tools
from tests.deploy.charts import NAMESPACE, RELEASE, manifests, of_kind

HERE = f'namespace="{NAMESPACE}",service="{RELEASE}-corepipe",pod="a"'
ELSEWHERE = f'namespace="{NAMESPACE}",service="another",pod="a"'
FIRST_TOKENS = "vllm:time_to_first_token_seconds_bucket"
ANSWERS = "http_requests_total"
STARTS = "corepipe_engine_process_start_time_seconds"


def series(name: str, values: str, where: str = HERE, **labels: str) -> dict[str, str]:
    more = "".join(f',{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{where}{more}}}", "values": values}


def first_tokens(slow: int, where: str = HERE) -> list[dict[str, str]]:
    """Series of 100 requests a minute, of which so many take longer than 10 s."""
    quick = 100 - slow
    return [
        series(FIRST_TOKENS, f"0+{count}x60", where, le=bound)
        for bound, count in (("5", quick), ("10", quick), ("20", 100), ("+Inf", 100))
    ]


def answers(errors: int) -> list[dict[str, str]]:
    return [
        series(ANSWERS, f"0+{100 - errors}x60", status="2xx"),
        series(ANSWERS, f"0+{errors}x60", status="5xx"),
    ]


def waiting(values: str) -> list[dict[str, str]]:
    return [series("corepipe_requests_waiting", values, engine="0")]


def held_blocks(values: str) -> list[dict[str, str]]:
    """A gauge in percent: blocks held out of 100."""
    blocks = [("corepipe_kv_blocks_held", values), ("corepipe_kv_blocks", "100x60")]
    return [series(name, one, engine="1") for name, one in blocks]


CASES: list[tuple[str, str, bool, list[dict[str, str]]]] = [
    ("CorepipeSlowFirstToken", "2 % are slow", True, first_tokens(2)),
    ("CorepipeSlowFirstToken", "none is slow", False, first_tokens(0)),
    ("CorepipeSlowFirstToken", "another release is slow", False, first_tokens(50, ELSEWHERE)),
    ("CorepipeErrors", "a tenth fails", True, answers(10)),
    ("CorepipeErrors", "one in a hundred fails", False, answers(1)),
    ("CorepipeErrors", "nobody asks", False, answers(0)[:1]),
    ("CorepipeQueueGrows", "it grows", True, waiting("0+2x60")),
    ("CorepipeQueueGrows", "it is long", False, waiting("50x60")),
    ("CorepipeQueueGrows", "it grows a little", False, waiting("0+0.1x60")),
    ("CorepipeKVCacheFull", "full", True, held_blocks("99x60")),
    ("CorepipeKVCacheFull", "now and then", False, held_blocks("99 20 " * 30)),
    ("CorepipeRestarts", "two within an hour", True, [series(STARTS, "100x10 700x10 1300x40")]),
    ("CorepipeRestarts", "one within an hour", False, [series(STARTS, "100x10 700x50")]),
    ("CorepipeRestarts", "gone while it loads", True, [series(STARTS, "100x10 _x3 700x10 _x3 1300x30")]),
]


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (it comes with Prometheus)")
    return found


def test_every_alert_fires_and_keeps_quiet(promtool: str, tmp_path: Path) -> None:
    (manifest,) = of_kind(manifests("watched"), "PrometheusRule")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(manifest["spec"]))
    tests: list[dict[str, Any]] = []
    for alert, name, fires, given in CASES:
        expected = [{"labels": "{}", "value": 1}] if fires else []
        query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
        check = {"expr": query, "eval_time": "40m", "exp_samples": expected}
        tests.append(
            {"interval": "1m", "name": f"{alert}: {name}", "input_series": given, "promql_expr_test": [check]}
        )
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": tests}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document))
    done = tools.run([promtool, "test", "rules", tmp_path / "tests.yaml"])
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_both_cases() -> None:
    (manifest,) = of_kind(manifests("watched"), "PrometheusRule")
    names = {rule["alert"] for group in manifest["spec"]["groups"] for rule in group["rules"]}
    assert {alert for alert, _, fires, _ in CASES if fires} == names
    assert {alert for alert, _, fires, _ in CASES if not fires} == names
