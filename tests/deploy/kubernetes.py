"""Kubernetes' own definitions of its objects, of several minor versions, from a package that ships them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import jsonschema
from referencing import Registry, Resource

from tests.deploy import tools
from tests.deploy.charts import Manifest

MINORS = ("1.34", "1.35", "1.36", "1.37")
CUSTOM = (
    "keda.sh/",
    "monitoring.coreos.com/",
    "gateway.networking.k8s.io/",
    "inference.networking.k8s.io/",
    "ray.io/",
)
"""Groups that it has no definitions of; test_crds.py has."""


@cache
def definitions(minor: str) -> tuple[Path, Registry]:
    """A minor version's schemas, which refuse unknown fields, and what all of them refer to."""
    schemas = tools.wanted(tools.KUBERNETES_VALIDATE) / "kubernetes_validate" / "kubernetes-json-schema"
    (folder,) = schemas.glob(f"v{minor}.*-local-strict")
    common = Resource.from_contents(json.loads((folder / "_definitions.json").read_text()))
    return folder, (common @ Registry()).crawl()


@cache
def validator(minor: str, kind: str, api: str) -> jsonschema.Draft202012Validator:
    folder, registry = definitions(minor)
    group, _, version = api.rpartition("/")
    name = "-".join(part for part in (kind.lower(), group.partition(".")[0], version) if part)
    return jsonschema.Draft202012Validator(
        json.loads((folder / f"{name}.json").read_text()), registry=registry
    )


def refuse(manifest: Manifest, minor: str) -> list[str]:
    """The objections of a minor version to a manifest."""
    check = validator(minor, manifest["kind"], manifest["apiVersion"])
    return [f"{minor} {error.json_path}: {error.message}" for error in check.iter_errors(manifest)]
