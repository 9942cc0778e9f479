"""What the gateway says of flows at `/openapi.json`, where it keeps them."""

from typing import Any

from kairos.plan.operators import NAME
from kairos.plan.query_settings import MOST_SETTINGS

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_TEXTS: Json = {"type": "array", "items": _TEXT}
_COUNT: Json = {"type": "integer", "minimum": 0}
_PATTERN = NAME.replace(r"\A", "^").replace(r"\Z", "$")
_NAME: Json = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": _TEXT | {"pattern": _PATTERN},
}
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
        "stream": {"type": "boolean", "description": "tell each operator as it finishes"},
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
    """The description of a gateway that keeps flows, too."""
    yaml: Json = {"application/yaml": {"schema": _TEXT}, "application/json": {"schema": {}}}
    answers = _json(_RESULT) | {"text/event-stream": {}}
    paths: Json = {
        "/v1/flows": {"get": _route("The tenant's flows, by name", _json(_LIST))},
        "/v1/flows/{name}": {
            "put": _route("Keep a flow, in place of one of its name", _json(_FLOW), _NAME, yaml),
            "get": _route("One of them, with its text", _json(_FLOW), _NAME),
            "delete": _route("Delete it", _json(_DELETED), _NAME),
        },
        "/v1/flows/{name}/invoke": {
            "post": _route("Run it for one row", answers, _NAME, _json(_INVOKE))
        },
    }
    return {**described, "paths": {**described["paths"], **paths}}


def _route(summary: str, content: Json, name: Json | None = None, body: Json | None = None) -> Json:
    error = _json({"$ref": "#/components/schemas/Error"})
    responses: Json = {"200": {"description": "The answer", "content": content}}
    for status, what in (("4XX", "It cannot be done as asked"), ("5XX", "Try again later")):
        responses[status] = {"description": what, "content": error}
    parameters = [] if name is None else [name]
    made: Json = {"summary": summary, "parameters": parameters, "responses": responses}
    return made if body is None else made | {"requestBody": {"required": True, "content": body}}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}
