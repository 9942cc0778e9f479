"""The gateway's OpenAPI description, at `/openapi.json`: the routes that Kairos reads or answers.

Of a body it describes the fields that Kairos reads; the rest is passed to the engine. Schemas of
Kairos's own answers are generated from their types.
"""

from functools import cache
from typing import Any

import msgspec

from kairos import __version__
from kairos.core import (
    IDENTIFIER_PATTERN,
    MAX_CALLS,
    PARENTS_LIMIT,
    SERVICE_CLASSES,
    Header,
    PlannedWork,
)
from kairos.gateway.api.insight import AGENTS, CALLS, MAX_AGENTS, MAX_OFFSET, DeclaredPlan, Ended
from kairos.observe import AgentsView, WorkflowView
from kairos.request import (
    ATTEMPT_LIMIT,
    MAX_BUDGET,
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_MESSAGES,
    MAX_MS,
    MAX_SEQUENCES,
    MAX_STOPS,
    MAX_TOKENS,
    MAX_TOOLS,
    NO_LIMIT,
)

Json = dict[str, Any]

_ID = IDENTIFIER_PATTERN.removeprefix(r"\A").removesuffix(r"\Z")
_IDENTIFIER: Json = {"type": "string", "pattern": f"^{_ID}$"}
_INSTANT: Json = {"type": "integer", "minimum": 0, "exclusiveMaximum": 10**18}
_CLASSES: Json = {"type": "string", "enum": list(SERVICE_CLASSES)}
_MILLISECONDS: Json = {"type": "integer", "minimum": 1, "maximum": MAX_MS}
_BUDGET: Json = {"type": "integer", "minimum": 1, "maximum": MAX_BUDGET}
_TOKENS: Json = {
    "type": ["integer", "null"],
    "minimum": NO_LIMIT,
    "maximum": MAX_TOKENS,
    "description": "the maximum number; -1: no limit",
}
_CHOICES: Json = {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_CHOICES}
_LOGPROBS: Json = {"type": ["integer", "null"], "minimum": NO_LIMIT, "maximum": MAX_LOGPROBS}
_NUMBER: Json = {"type": ["number", "null"]}
_TEXT: Json = {"type": "string"}
_PARTS: Json = {
    "type": "array",
    "items": {"type": "object", "properties": {"text": _TEXT}, "required": ["type"]},
}
_CONTENT: Json = {"anyOf": [_TEXT, _PARTS, {"type": "null"}]}
_MESSAGE: Json = {"type": "object", "properties": {"role": _TEXT, "content": _CONTENT}}
_MESSAGES: Json = {
    "type": "array",
    "items": _MESSAGE | {"required": ["role"]},
    "maxItems": MAX_MESSAGES,
}
_INPUT: Json = {"anyOf": [_TEXT, {"type": "array", "items": _MESSAGE, "maxItems": MAX_MESSAGES}]}
_IDS: Json = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
_TEXTS: Json = {
    "anyOf": [
        _TEXT,
        _IDS,
        *({"type": "array", "items": each, "maxItems": MAX_SEQUENCES} for each in (_TEXT, _IDS)),
    ],
    "description": "text, texts or token ids",
}
_STOP: Json = {
    "anyOf": [
        {"type": ["string", "null"]},
        {"type": "array", "items": _TEXT, "maxItems": MAX_STOPS},
    ]
}


@cache
def description() -> Json:
    """Return the OpenAPI description. It is cached, since anyone may request it."""
    views, schemas = msgspec.json.schema_components(
        (WorkflowView, Ended, AgentsView, DeclaredPlan, PlannedWork),
        ref_template="#/components/schemas/{name}",
    )
    workflow, ended, agents, declared, plan = views
    return {
        "openapi": "3.1.0",
        "info": {"title": "Kairos", "version": __version__},
        "security": [{}, {"key": []}],
        "paths": {
            "/v1/chat/completions": _hot("A chat", ["messages"], messages=_MESSAGES),
            "/v1/completions": _hot("A completion", ["prompt"], prompt=_TEXTS),
            "/v1/responses": _hot("A response", ["input"], input=_INPUT, instructions=_TEXT),
            "/v1/messages": _messages(),
            "/v1/embeddings": _hot("Embeddings", ["input"], input=_TEXTS),
            "/v1/models": _get("The models that instances serve", _MODELS),
            "/v1/models/{name}": _get("A model", _MODEL, in_path("name")),
            "/v1/workflows/{workflow_id}": _get(
                "Graph and calls of a workflow that is open or ended recently",
                workflow,
                in_path("workflow_id"),
                *_page(CALLS, MAX_CALLS),
            )
            | _ends("delete", "Cancel a workflow and its calls", ended),
            "/v1/workflows/{workflow_id}/end": _ends(
                "post", "End a workflow whose user has the final reply", ended
            ),
            "/v1/plans/{app}": {
                "put": describe_operation(
                    "Declare the calls that the workflows of an app consist of",
                    *(json_of(declared), in_path("app")),
                    body=json_of(plan),
                )
            },
            "/v1/agents": _get("Learnt profiles of agents", agents, *_page(AGENTS, MAX_AGENTS)),
            "/health": _open(
                "Whether an instance can take calls", {"200": _said("Yes"), "503": _said("No")}
            ),
            "/metrics": _open(
                "Metrics for Prometheus", {"200": _said("Metrics", {"text/plain": {}})}
            ),
        },
        "components": {
            "schemas": schemas | {"Error": _ERROR, "MessagesError": _MESSAGES_ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _hot(summary: str, required: list[str], **fields: Json) -> Json:
    read = _object(required, **(_FIELDS | fields))
    anything: Json = {"application/json": {}, "text/event-stream": {}}
    summary = f"{summary}, by an instance that Kairos chooses"
    return {"post": describe_operation(summary, anything, *_HEADERS, body=json_of(read))}


def _messages() -> Json:
    """Describe Anthropic's route, whose errors have their own format."""
    system: Json = {"anyOf": [_TEXT, _PARTS]}
    limit: Json = {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS}
    fields = {"messages": _MESSAGES, "system": system, "max_tokens": limit}
    described = _hot("A message", ["messages", "max_tokens"], **fields)
    described["post"]["responses"] = _answers(
        {"application/json": {}, "text/event-stream": {}}, "MessagesError"
    )
    return described


def describe_operation(
    summary: str, content: Json, *parameters: Json, body: Json | None = None
) -> Json:
    """Describe an operation that returns content, or an error in OpenAI's format."""
    said = {"summary": summary, "parameters": [*parameters], "responses": _answers(content)}
    return said if body is None else said | {"requestBody": {"required": True, "content": body}}


def _get(summary: str, answer: Json, *parameters: Json) -> Json:
    return {"get": describe_operation(summary, json_of(answer), *parameters)}


def _ends(method: str, summary: str, answer: Json) -> Json:
    said = describe_operation(summary, json_of(answer), in_path("workflow_id"))
    said["responses"]["202"] = _said("Accepted; it takes effect soon", json_of(answer))
    return {method: said}


def _open(summary: str, responses: Json) -> Json:
    """Describe an operation that needs no key."""
    return {"get": {"summary": summary, "security": [{}], "responses": responses}}


def _answers(content: Json, error_form: str = "Error") -> Json:
    error = json_of({"$ref": f"#/components/schemas/{error_form}"})
    return {
        "200": _said("The answer", content),
        "4XX": _said("The request is invalid or refused", error),
        "5XX": _said("The request failed; Retry-After says whether to retry", error),
    }


def _said(what: str, content: Json | None = None) -> Json:
    return {"description": what} | ({} if content is None else {"content": content})


def json_of(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def in_path(name: str, schema: Json = _TEXT) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _page(usual: int, most: int) -> list[Json]:
    limit = {"type": "integer", "minimum": 1, "maximum": most, "default": usual}
    offset = {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET, "default": 0}
    return [
        {"name": "offset", "in": "query", "schema": offset},
        {"name": "limit", "in": "query", "schema": limit},
    ]


def _object(required: list[str], **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": required}


def _header(name: str, says: str, schema: Json) -> Json:
    return {"name": name, "in": "header", "description": says, "schema": schema}


_FIELDS: Json = {
    "model": {"type": ["string", "null"]},
    "stream": {"type": ["boolean", "null"]},
    "stream_options": {
        "type": ["object", "null"],
        "properties": {"include_usage": {"type": "boolean"}},
    },
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), _TOKENS),
    **dict.fromkeys(("n", "best_of"), _CHOICES),
    "logprobs": {"anyOf": [{"type": "boolean"}, _LOGPROBS]},
    "top_logprobs": _LOGPROBS,
    **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), _NUMBER),
    "seed": {"type": ["integer", "null"], "minimum": -(2**63), "maximum": 2**63 - 1},
    "stop": _STOP,
    "tools": {"type": ["array", "null"], "items": {"type": "object"}, "maxItems": MAX_TOOLS},
}
_PARENTS: Json = {
    "type": "string",
    "pattern": f"^{_ID}([ \\t]*,[ \\t]*{_ID}){{0,{PARENTS_LIMIT - 1}}}$",
}
_HEADERS = [
    _header(Header.WORKFLOW_ID, "the user's task that the call is part of", _IDENTIFIER),
    _header(Header.APP, "the application", _IDENTIFIER),
    _header(Header.AGENT, "the agent that makes the call", _IDENTIFIER),
    _header(Header.UPSTREAM, "the agent whose message led to the call", _IDENTIFIER),
    _header(Header.PARENT_ID, "the requests whose answers led to the call", _PARENTS),
    _header(Header.STARTED_AT, "when the task began, in µs since the epoch", _INSTANT),
    _header(Header.CLASS, "the class of service; operators may add others", _CLASSES),
    _header(Header.DEADLINE, "the call's deadline, in µs since the epoch", _INSTANT),
    _header(Header.DEADLINE_MS, "the same, in ms from now", _MILLISECONDS),
    _header(Header.BUDGET_CALLS, "maximum number of the workflow's calls", _BUDGET),
    _header(Header.BUDGET_TOKENS, "maximum tokens of its prompts and answers", _BUDGET),
    _header(Header.BUDGET_MS, "maximum time since the workflow's first call, ms", _BUDGET),
    _header(
        Header.ATTEMPT,
        "the number of the attempt, from 1",
        {"type": "integer", "minimum": 1, "maximum": ATTEMPT_LIMIT},
    ),
    _header(Header.REQUEST_ID, "the call's id; used or invalid ones are replaced", _TEXT),
]
_MODEL = _object(
    ["id", "object", "created", "owned_by"], id=_TEXT, object={"const": "model"}, owned_by=_TEXT
)
_MODELS = _object(
    ["object", "data"], object={"const": "list"}, data={"type": "array", "items": _MODEL}
)
_ERROR = _object(
    ["error"],
    error=_object(["message", "type", "param", "code"], message=_TEXT, type=_TEXT),
)
_MESSAGES_ERROR = _object(
    ["type", "error"],
    type={"const": "error"},
    error=_object(["message", "type"], message=_TEXT, type=_TEXT),
)
