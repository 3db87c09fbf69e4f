"""The parts of three custom resource schemas that the manifests use."""

from typing import Any, Final

Schema = dict[str, Any]

STRING: Final[Schema] = {"type": "string", "minLength": 1}
STRINGS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: Final[Schema] = {"type": "string", "pattern": "^([0-9]+(ms|[smhdwy]))+$"}


def closed(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """Describe an object with these fields and no others."""
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def several(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def resource(kind: str, spec: Schema) -> Schema:
    named = closed(("name",), name=STRING, namespace=STRING, labels=STRINGS, annotations=STRINGS)
    return closed(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "monitoring.coreos.com/v1"},
        kind={"const": kind},
        metadata=named,
        spec=spec,
    )


_ENDPOINT: Final = closed(
    ("port",),
    port=STRING,
    path=STRING,
    interval=DURATION,
    scrapeTimeout=DURATION,
    relabelings=several(closed(sourceLabels=several(STRING), targetLabel=STRING, regex=STRING, replacement=STRING)),
)


def monitor(kind: str, endpoints: str) -> Schema:
    selector, limit = closed(("matchLabels",), matchLabels=STRINGS), {"type": "integer", "minimum": 1}
    fields = {"selector": selector, "sampleLimit": limit, endpoints: several(_ENDPOINT)}
    return resource(kind, closed(("selector", endpoints), **fields))


SCHEMAS: Final = {
    "PodMonitor": monitor("PodMonitor", "podMetricsEndpoints"),
    "ServiceMonitor": monitor("ServiceMonitor", "endpoints"),
    "PrometheusRule": resource("PrometheusRule", {}),  # promtool reads its rules: test_monitoring.py
}
