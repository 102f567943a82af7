"""JSON schemas of the custom resources that the chart makes.

KEDA's and the Prometheus operator's come from packages of models made from their CRDs.  No package ships
those of Gateway API (v1), of its inference extension (v1) and of KubeRay (ray.io/v1, of 1.6), and none that
of an endpoint picker's configuration: of these the fields that the chart uses are written down here, with the
types and bounds of their definitions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from tests.deploy import tools

Schema = Mapping[str, Any]

PRINT_SCHEMAS = """
import json
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PrometheusRule, ServiceMonitor
models = (ScaledObject, PrometheusRule, ServiceMonitor)
print(json.dumps({m.__name__: m.model_json_schema(by_alias=True) for m in models}))
"""


STEP = re.compile(r"(\w+)(\[(?:(\d+)-(\d+))?\])?(!?)")


def _closed(fields: Mapping[str, Schema]) -> Schema:
    """Returns the schema of an object that has no other fields than these, given by their dotted paths.

    `a!` is required.  `a[]` is a list of 1 to 16, and `a[0-32]` one of none to 32.
    """
    properties: dict[str, Schema] = {}
    required = []
    inner: dict[str, dict[str, Schema]] = {}
    for path, schema in fields.items():
        step, _, rest = path.partition(".")
        inner.setdefault(step, {})[rest] = schema
    for step, below in inner.items():
        found = STEP.fullmatch(step)
        assert found is not None, step
        name, is_list, least, most, must = found.groups()
        schema = below[""] if "" in below else _closed(below)
        if is_list:
            bounds = {"minItems": int(least or 1), "maxItems": int(most or 16)}
            schema = {"type": "array", "items": schema, **bounds}
        properties[name] = schema
        required += [name] if must else []
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": required}


_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 253}
_PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
_HOST: Schema = {
    **_NAME,
    "pattern": r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
}
_DURATION: Schema = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
_TEXT: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_LABELS: Schema = {"type": "object", "additionalProperties": {**_TEXT, "maxLength": 63}, "maxProperties": 64}
_STARTS: Schema = {"type": "object", "additionalProperties": _TEXT}
_REFERENCE: Mapping[str, Schema] = {"group": _TEXT, "kind": _NAME, "name!": _NAME}
_PLACE: Mapping[str, Schema] = {**_REFERENCE, "namespace": _NAME, "port": _PORT}


def _resource(api: str, spec: Mapping[str, Schema]) -> Schema:
    head = {"apiVersion!": {"const": api}, "kind!": _TEXT, "metadata!": _OBJECT}
    return _closed({**head, "spec!": _closed(spec)})


HTTP_ROUTE = _resource(
    "gateway.networking.k8s.io/v1",
    {
        "parentRefs[0-32]": _closed({**_PLACE, "sectionName": _NAME}),
        "hostnames[0-16]": _HOST,
        "rules[].matches[1-64].path.type": {"enum": ["Exact", "PathPrefix", "RegularExpression"]},
        "rules[].matches[1-64].path.value": {**_TEXT, "maxLength": 1024},
        "rules[].timeouts.request": _DURATION,
        "rules[].timeouts.backendRequest": _DURATION,
        "rules[].backendRefs[]": _closed({**_PLACE, "weight": {"type": "integer"}}),
    },
)

_FAILURES: Schema = {"enum": ["FailOpen", "FailClose"]}
INFERENCE_POOL = _resource(
    "inference.networking.k8s.io/v1",
    {
        "selector!.matchLabels!": _LABELS,
        "targetPorts[1-8]!.number!": _PORT,
        "endpointPickerRef": _closed({**_REFERENCE, "port.number!": _PORT, "failureMode": _FAILURES}),
    },
)

_PODS: Mapping[str, Schema] = {
    "rayStartParams": _STARTS,
    "template!.metadata!": _OBJECT,
    "template!.spec!": _OBJECT,  # checked as that of a Pod
}
RAY_CLUSTER = _resource(
    "ray.io/v1",
    {
        "rayVersion": _TEXT,
        "authOptions.mode": {"enum": ["disabled", "token"]},
        "authOptions.secretName": _NAME,
        "headGroupSpec!": _closed(_PODS),
        "workerGroupSpecs[]": _closed(
            {"groupName!": _NAME, "replicas": _COUNT, "minReplicas!": _COUNT, "maxReplicas!": _COUNT, **_PODS}
        ),
    },
)

PICKER_PLUGINS: Mapping[str, Mapping[str, Schema]] = {
    "single-profile-handler": {},
    "metrics-data-source": {"scheme": {"enum": ["http", "https"]}, "port": _PORT},
    "core-metrics-extractor": {},
    "endpoint-notification-source": {},
    "token-producer": {
        "modelName": _NAME,
        "vllm.url!": _NAME,
        "vllm.insecureSkipVerify": {"type": "boolean"},
    },
    "precise-prefix-cache-producer": {
        "tokenProcessorConfig.blockSizeTokens": {"type": "integer", "minimum": 1},
        "kvEventsConfig.topicFilter": _NAME,
        "kvEventsConfig.discoverPods": {"type": "boolean"},
        "kvEventsConfig.podDiscoveryConfig.podNamespace": _NAME,
        "kvEventsConfig.podDiscoveryConfig.podLabelSelector": _NAME,
        "kvEventsConfig.podDiscoveryConfig.socketPort": _PORT,
        "kvEventsConfig.podDiscoveryConfig.replaySocketPort": _PORT,
    },
    "prefix-cache-scorer": {"prefixMatchInfoProducerName": _NAME},
    "queue-scorer": {},
    "kv-cache-utilization-scorer": {},
    "max-score-picker": {},
}
"""Parameters of llm-d-router's plugins that the chart names, by type."""

_PLUGINS = [
    _closed({"type!": {"const": name}, "parameters": _closed(parameters)})
    for name, parameters in PICKER_PLUGINS.items()
]
ENDPOINT_PICKER_CONFIG = _closed(
    {
        "apiVersion!": {"const": "llm-d.ai/v1alpha1"},
        "kind!": {"const": "EndpointPickerConfig"},
        "plugins[]!": {"oneOf": _PLUGINS},
        "dataLayer.sources[].pluginRef!": _NAME,
        "dataLayer.sources[].extractors[].pluginRef!": _NAME,
        "schedulingProfiles[]!.name!": _NAME,
        "schedulingProfiles[]!.plugins[]!.pluginRef!": _NAME,
        "schedulingProfiles[]!.plugins[]!.weight": {"type": "number"},
    }
)
"""The configuration of llm-d-router (0.10): a file, not a resource of a cluster."""


@cache
def operators() -> Mapping[str, Schema]:
    """Kind -> schema, of KEDA and the Prometheus operator; unknown fields are refused."""
    printed = tools.printed(PRINT_SCHEMAS, tools.wanted(*tools.OPERATOR_MODELS))
    return {kind: _strict(schema) for kind, schema in json.loads(printed).items()}


def _strict(schema: Any) -> Any:
    """The models ignore what they do not know, and the API server drops it: here it is an error."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    if "properties" in schema:
        strict.setdefault("additionalProperties", False)
    return strict
