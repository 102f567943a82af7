"""Requirements of the image: every distribution has a version and a hash, and the list is complete."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.charts import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUN, BUILD, FLEET = (ROOT / "requirements" / f"{name}.txt" for name in ("run", "build", "fleet"))
IMAGE = {"python_version": "3.11", "python_full_version": "3.11.14", "sys_platform": "linux", "extra": ""}


def pinned(file: Path) -> dict[str, tuple[str, list[str]]]:
    """Distributions of a list -> version and sha256 hashes."""
    text = file.read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    found = {}
    for requirement, *hashes in lines:
        match = re.fullmatch(r"([a-z0-9-]+)==([\w.+!-]+)", requirement)
        assert match is not None, requirement
        found[match[1]] = (match[2], [h.removeprefix("--hash=sha256:") for h in hashes])
    return found


@pytest.mark.parametrize("file", [RUN, BUILD, FLEET])
def test_every_distribution_has_a_version_and_hashes_and_no_source(file: Path) -> None:
    lists = pinned(file)
    assert lists
    for name, (_, hashes) in lists.items():
        assert hashes, name
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in hashes), name
    assert "://" not in file.read_text(), "where packages come from is the user's to say"
    assert "--index" not in file.read_text()
    assert "--find-links" not in file.read_text()


def satisfied(requirement: Requirement, versions: Mapping[str, tuple[str, list[str]]]) -> bool:
    name = canonicalize_name(requirement.name)
    return name in versions and requirement.specifier.contains(versions[name][0], prereleases=True)


def test_the_project_s_dependencies_are_pinned_within_their_bounds() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    imaged = [*PROJECT["project"]["dependencies"], *extras["tracing"], *extras["kv-events"]]
    wanted = [Requirement(text) for text in imaged]
    assert [str(r) for r in wanted if not satisfied(r, pinned(RUN))] == []


def test_an_image_with_a_fleet_has_what_the_others_have_and_what_ray_needs() -> None:
    ray = [Requirement(text) for text in PROJECT["project"]["optional-dependencies"]["ray"]]
    assert [str(r) for r in ray if not satisfied(r, pinned(FLEET))] == []
    assert pinned(RUN).items() <= pinned(FLEET).items()
    chart = yaml.safe_load((ROOT / "helm" / "corepipe" / "values.yaml").read_text())
    assert chart["fleet"]["rayVersion"] == pinned(FLEET)["ray"][0]


def test_what_builds_the_wheel_is_pinned_within_its_bounds() -> None:
    wanted = [Requirement(text) for text in PROJECT["build-system"]["requires"]]
    wanted += [
        Requirement(line) for line in (ROOT / "requirements" / "build.in").read_text().splitlines()[1:]
    ]
    assert [str(r) for r in wanted if not satisfied(r, pinned(BUILD))] == []


@pytest.mark.parametrize("file", [RUN, FLEET])
def test_what_the_pinned_ones_need_is_pinned_too(file: Path) -> None:
    versions = pinned(file)
    missing = []
    for name, (version, _) in versions.items():
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # needed on the image's platform alone
        if found.version != version:
            continue  # another version may need other things
        needed = [Requirement(text) for text in found.requires or []]
        applying = [r for r in needed if r.marker is None or r.marker.evaluate(IMAGE)]
        missing += [f"{name} needs {r}" for r in applying if not satisfied(r, versions)]
    assert missing == []


def test_the_image_installs_nothing_else() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip (?:install|wheel) ([^&\n]*)", text)
    assert len(installs) == 4
    for options in installs:
        hashed = "--require-hashes" in options and "--only-binary=:all:" in options
        assert hashed or "--no-deps" in options, options
    assert "--no-build-isolation" in text
