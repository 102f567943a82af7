"""JSON schemas of the custom resources that the chart makes.

KEDA's and the Prometheus operator's come from packages of models made from their CRDs.  No package ships
those of Gateway API (v1), of its inference extension (v1) and of KubeRay (ray.io/v1, of 1.6), and none that
of an endpoint picker's configuration: of these the fields that the chart uses are written down here, with the
types and bounds of their definitions.
"""

from __future__ import annotations

import json
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


def _closed(properties: Mapping[str, Schema], *required: str) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(required),
    }


def _list(items: Schema, most: int = 16) -> Schema:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 253}
_PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
_HOST: Schema = {
    **_NAME,
    "pattern": r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
}
_DURATION: Schema = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
_REFERENCE: Mapping[str, Schema] = {"group": {"type": "string"}, "kind": _NAME, "name": _NAME}
_LABELS: Schema = {
    "type": "object",
    "additionalProperties": {"type": "string", "maxLength": 63},
    "maxProperties": 64,
}


def _resource(api: str, spec: Schema) -> Schema:
    head = {"apiVersion": {"const": api}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    return _closed({**head, "spec": spec}, "apiVersion", "kind", "metadata", "spec")


HTTP_ROUTE = _resource(
    "gateway.networking.k8s.io/v1",
    _closed(
        {
            "parentRefs": {
                **_list(
                    _closed({**_REFERENCE, "namespace": _NAME, "sectionName": _NAME, "port": _PORT}, "name"),
                    32,
                ),
                "minItems": 0,
            },
            "hostnames": {**_list(_HOST), "minItems": 0},
            "rules": _list(
                _closed(
                    {
                        "matches": _list(
                            _closed(
                                {
                                    "path": _closed(
                                        {
                                            "type": {"enum": ["Exact", "PathPrefix", "RegularExpression"]},
                                            "value": {"type": "string", "maxLength": 1024},
                                        }
                                    )
                                }
                            ),
                            64,
                        ),
                        "timeouts": _closed({"request": _DURATION, "backendRequest": _DURATION}),
                        "backendRefs": _list(
                            _closed(
                                {
                                    **_REFERENCE,
                                    "namespace": _NAME,
                                    "port": _PORT,
                                    "weight": {"type": "integer"},
                                },
                                "name",
                            )
                        ),
                    }
                )
            ),
        }
    ),
)

INFERENCE_POOL = _resource(
    "inference.networking.k8s.io/v1",
    _closed(
        {
            "selector": _closed({"matchLabels": _LABELS}, "matchLabels"),
            "targetPorts": _list(_closed({"number": _PORT}, "number"), 8),
            "endpointPickerRef": _closed(
                {
                    **_REFERENCE,
                    "port": _closed({"number": _PORT}, "number"),
                    "failureMode": {"enum": ["FailOpen", "FailClose"]},
                },
                "name",
            ),
        },
        "selector",
        "targetPorts",
    ),
)


_COUNT: Schema = {"type": "integer", "minimum": 0}
_TEMPLATE = _closed({"metadata": {"type": "object"}, "spec": {"type": "object"}}, "metadata", "spec")
"""A pod's: what is in it is looked at as of a Pod."""
_STARTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}

RAY_CLUSTER = _resource(
    "ray.io/v1",
    _closed(
        {
            "rayVersion": {"type": "string"},
            "authOptions": _closed({"mode": {"enum": ["disabled", "token"]}, "secretName": _NAME}),
            "headGroupSpec": _closed({"rayStartParams": _STARTS, "template": _TEMPLATE}, "template"),
            "workerGroupSpecs": _list(
                _closed(
                    {
                        "groupName": _NAME,
                        "replicas": _COUNT,
                        "minReplicas": _COUNT,
                        "maxReplicas": _COUNT,
                        "rayStartParams": _STARTS,
                        "template": _TEMPLATE,
                    },
                    "groupName",
                    "maxReplicas",
                    "minReplicas",
                    "template",
                )
            ),
        },
        "headGroupSpec",
    ),
)


_REF = {"pluginRef": _NAME}

PICKER_PLUGINS: Mapping[str, Mapping[str, Schema]] = {
    "single-profile-handler": {},
    "metrics-data-source": {"scheme": {"enum": ["http", "https"]}, "port": _PORT},
    "core-metrics-extractor": {},
    "endpoint-notification-source": {},
    "token-producer": {
        "modelName": _NAME,
        "vllm": _closed({"url": _NAME, "insecureSkipVerify": {"type": "boolean"}}, "url"),
    },
    "precise-prefix-cache-producer": {
        "tokenProcessorConfig": _closed({"blockSizeTokens": {"type": "integer", "minimum": 1}}),
        "kvEventsConfig": _closed(
            {
                "topicFilter": _NAME,
                "discoverPods": {"type": "boolean"},
                "podDiscoveryConfig": _closed(
                    {
                        "podNamespace": _NAME,
                        "podLabelSelector": _NAME,
                        "socketPort": _PORT,
                        "replaySocketPort": _PORT,
                    }
                ),
            }
        ),
    },
    "prefix-cache-scorer": {"prefixMatchInfoProducerName": _NAME},
    "queue-scorer": {},
    "kv-cache-utilization-scorer": {},
    "max-score-picker": {},
}
"""Parameters of llm-d-router's plugins that the chart names, by type."""

ENDPOINT_PICKER_CONFIG = _closed(
    {
        "apiVersion": {"const": "llm-d.ai/v1alpha1"},
        "kind": {"const": "EndpointPickerConfig"},
        "plugins": _list(
            {
                "oneOf": [
                    _closed({"type": {"const": name}, "parameters": _closed(parameters)}, "type")
                    for name, parameters in PICKER_PLUGINS.items()
                ]
            }
        ),
        "dataLayer": _closed(
            {
                "sources": _list(
                    _closed({**_REF, "extractors": _list(_closed(_REF, "pluginRef"))}, "pluginRef")
                )
            }
        ),
        "schedulingProfiles": _list(
            _closed(
                {
                    "name": _NAME,
                    "plugins": _list(_closed({**_REF, "weight": {"type": "number"}}, "pluginRef")),
                },
                "name",
                "plugins",
            )
        ),
    },
    "apiVersion",
    "kind",
    "plugins",
    "schedulingProfiles",
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
