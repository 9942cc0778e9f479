"""Description of the routes of flows, for `/openapi.json`."""

from kairos.gateway import Json, describe_operation, in_path, json_of
from kairos.workflows.compile.operators import NAME
from kairos.workflows.compile.query_settings import MOST_SETTINGS

_TEXT: Json = {"type": "string"}
_TEXTS: Json = {"type": "array", "items": _TEXT}
_COUNT: Json = {"type": "integer", "minimum": 0}
_PATTERN = NAME.replace(r"\A", "^").replace(r"\Z", "$")
_NAME = in_path("name", _TEXT | {"pattern": _PATTERN})
_FLOW_FIELDS: Json = {
    "id": _TEXT,
    "object": {"const": "flow"},
    "model": _TEXT,
    "created_at": _COUNT,
    "changed_at": _COUNT,
    "inputs": _TEXTS,
    "outputs": _TEXTS,
    "operators": _COUNT,
}
_FLOW: Json = {
    "type": "object",
    "properties": _FLOW_FIELDS | {"source": _TEXT},
    "required": list(_FLOW_FIELDS),
}
_LIST: Json = {
    "type": "object",
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _FLOW}},
    "required": ["object", "data"],
}
_DELETED: Json = {
    "type": "object",
    "properties": {"id": _TEXT, "object": {"const": "flow"}, "deleted": {"const": True}},
    "required": ["id", "object", "deleted"],
}
_SETTINGS: Json = {
    "type": "object",
    "description": "by OPERATOR.PARAMETER",
    "maxProperties": MOST_SETTINGS,
}
_INVOKE: Json = {
    "type": "object",
    "properties": {
        "inputs": {"type": "object", "description": "by column"},
        "settings": _SETTINGS,
        "stream": {"type": "boolean", "description": "send an event for each finished operator"},
    },
    "additionalProperties": False,
}
_RESULT: Json = {
    "type": "object",
    "properties": {
        "id": _TEXT,
        "object": {"const": "flow.invocation"},
        "flow": _TEXT,
        "created": _COUNT,
        "outputs": {"type": ["object", "null"]},
        "usage": {"type": "object"},
        "took_s": {"type": "number"},
    },
    "required": ["id", "object", "flow", "created", "outputs", "usage", "took_s"],
}


def with_flows(described: Json) -> Json:
    """Add the routes of flows to an OpenAPI description."""
    yaml: Json = {"application/yaml": {"schema": _TEXT}, "application/json": {"schema": {}}}
    answers = json_of(_RESULT) | {"text/event-stream": {}}
    paths: Json = {
        "/v1/flows": {"get": describe_operation("The tenant's flows, by name", json_of(_LIST))},
        "/v1/flows/{name}": {
            "put": describe_operation(
                "Store a flow, or replace the one of that name", json_of(_FLOW), _NAME, body=yaml
            ),
            "get": describe_operation("A flow, with its text", json_of(_FLOW), _NAME),
            "delete": describe_operation("Delete a flow", json_of(_DELETED), _NAME),
        },
        "/v1/flows/{name}/invoke": {
            "post": describe_operation(
                "Run a flow for one row", answers, _NAME, body=json_of(_INVOKE)
            )
        },
    }
    return {**described, "paths": {**described["paths"], **paths}}
