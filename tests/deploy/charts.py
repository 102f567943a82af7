"""Renders the chart with Helm."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import typer.main
import yaml

from corepipe.cli.app import app
from tests.deploy import tools

Manifest = Mapping[str, Any]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "corepipe"
CASES = sorted(path.stem for path in (CHART / "ci").glob("*.yaml"))
"""Values files that everything is checked with."""

RELEASE, NAMESPACE = "demo", "serving"


def values_file(case: str) -> Path:
    return CHART / "ci" / f"{case}.yaml"


def default_values() -> dict[str, Any]:
    return yaml.safe_load((CHART / "values.yaml").read_text())


@cache
def template(*files: Path) -> str:
    """All manifests, as YAML; Helm's own complaint fails the test."""
    done = attempt(files)
    assert done.returncode == 0, done.stderr
    return done.stdout


def attempt(files: Sequence[Path]) -> subprocess.CompletedProcess[str]:
    chosen = [part for file in files for part in ("--values", file)]
    command = [tools.wanted("helm"), "template", RELEASE, CHART, "--namespace", NAMESPACE, *chosen]
    with tempfile.TemporaryDirectory() as home:
        return tools.run(command, {f"HELM_{kind}_HOME": home for kind in ("CACHE", "CONFIG", "DATA")})


def refusal(values: Mapping[str, Any]) -> str:
    """Returns Helm's error for values that it refuses."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(values, file)
        file.flush()
        done = attempt([Path(file.name)])
    assert done.returncode != 0, f"taken: {values}"
    return done.stderr


def rendered(values: Mapping[str, Any], case: str = "default") -> Sequence[Manifest]:
    """Manifests of a case with further values."""
    return _rendered(json.dumps(values), case)


@cache
def _rendered(values: str, case: str) -> Sequence[Manifest]:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(values)
        file.flush()
        return parsed(attempt([values_file(case), Path(file.name)]))


def parsed(done: subprocess.CompletedProcess[str]) -> list[Manifest]:
    assert done.returncode == 0, done.stderr
    return read(done.stdout)


def read(text: str) -> list[Manifest]:
    """Manifests, by libyaml where it is there: it takes a tenth of the time."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [manifest for manifest in yaml.load_all(text, loader) if manifest]


@cache
def manifests(case: str) -> Sequence[Manifest]:
    return read(template(values_file(case)))


def of_kind(found: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in found if manifest["kind"] == kind]


def pod_spec(found: Sequence[Manifest]) -> Manifest:
    (deployment,) = of_kind(found, "Deployment")
    return deployment["spec"]["template"]["spec"]


def container(found: Sequence[Manifest]) -> Manifest:
    (only,) = pod_spec(found)["containers"]
    return only


def serve_parameters(found: Sequence[Manifest]) -> dict[str, Any]:
    """Parses the pod's arguments as `corepipe serve` does; fails on one that it does not take."""
    return parameters(container(found)["args"])


def parameters(words: Sequence[str]) -> dict[str, Any]:
    """Parses arguments as a command of `corepipe` does."""
    command, *arguments = words
    return commands()[command].make_context(command, list(arguments)).params


@cache
def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return group.commands
