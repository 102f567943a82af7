"""Custom resources of the chart are what their CRDs define."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest

from tests.deploy.charts import CASES, manifests, of_kind
from tests.deploy.crds import HTTP_ROUTE, INFERENCE_POOL, RAY_CLUSTER, operators

OWN = {"HTTPRoute": HTTP_ROUTE, "InferencePool": INFERENCE_POOL, "RayCluster": RAY_CLUSTER}
FROM_PACKAGES = ("ScaledObject", "ServiceMonitor", "PrometheusRule")


def made(kind: str) -> list[dict[str, Any]]:
    found = [dict(manifest) for case in CASES for manifest in of_kind(manifests(case), kind)]
    assert found, f"no case makes a {kind}"
    return found


def schema_of(kind: str) -> Any:
    return OWN[kind] if kind in OWN else operators()[kind]


@pytest.mark.parametrize("kind", [*OWN, *FROM_PACKAGES])
def test_it_fits_its_definition(kind: str) -> None:
    for manifest in made(kind):
        jsonschema.Draft202012Validator(schema_of(kind)).validate(manifest)


@pytest.mark.parametrize("kind", [*OWN, *FROM_PACKAGES])
def test_an_unknown_field_would_be_found(kind: str) -> None:
    wrong = copy.deepcopy(made(kind)[0])
    wrong["spec"]["unheardOf"] = 1
    with pytest.raises(jsonschema.ValidationError, match="unheardOf"):
        jsonschema.Draft202012Validator(schema_of(kind)).validate(wrong)


def test_no_other_custom_resource_is_made() -> None:
    builtin = {"v1", "apps/v1", "batch/v1", "policy/v1", "autoscaling/v2", "networking.k8s.io/v1"}
    custom = {m["kind"] for case in CASES for m in manifests(case) if m["apiVersion"] not in builtin}
    assert custom == {*OWN, *FROM_PACKAGES}
