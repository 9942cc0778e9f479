"""Identity of a call from all sources: field by field, the one of highest rank counts.

declared: `X-Kairos-*` headers; alias: what agents and frameworks already send; route: a base URL
with `/wf/{workflow}`, `/app/{app}` and `/agent/{agent}` before `/v1`, any of them, each once, for
clients that can only set a base URL; trace: W3C trace context. An API key for one app overrides the
app.

Of a trace, `baggage` counts first (`kairos.*`, then the GenAI conventions' names of agent and
conversation), then the trace id of `traceparent` as the workflow. Values that are not identifiers
are ignored, since they were not meant for Kairos.
"""

import re
from collections.abc import Mapping
from urllib.parse import unquote

import msgspec

from kairos.core import RAW_HEADERS, TRACEPARENT_PATTERN, Header
from kairos.request.caller import Caller
from kairos.request.client_response import ASGIApp, Receive, Scope, Send
from kairos.request.declared import declared_identity
from kairos.request.identity.aliases import Aliases
from kairos.request.identity.identity import Field, Headers, Identity, identifier_of

Route = Mapping[Field, str]

_FIELDS: dict[str, Field] = {"wf": "workflow_id", "app": "app", "agent": "agent"}
_STARTS = tuple(f"/{each}/" for each in _FIELDS)
_NO_NAMES: Route = {}

_BAGGAGE, _TRACE_PARENT = RAW_HEADERS[Header.BAGGAGE], RAW_HEADERS[Header.TRACE_PARENT]
_IN_TRACE_PARENT = re.compile(TRACEPARENT_PATTERN)
_BAGGAGE_LIMIT = 8192  # bytes, the least that the W3C asks a platform to carry
_BAGGAGE_FIELDS: dict[str, Field] = {  # highest first
    "kairos.workflow_id": "workflow_id",
    "kairos.app": "app",
    "kairos.agent": "agent",
    "kairos.upstream": "upstream",
    "gen_ai.agent.name": "agent",
    "gen_ai.conversation.id": "workflow_id",
}


def identity_of(
    headers: Headers,
    told: Mapping[str, msgspec.Raw],
    route: Route,
    caller: Caller,
    aliases: Aliases,
) -> Identity:
    """Return the identity of a call, with None for unknown fields.

    `told` has the body's fields of `BODY_FIELDS`.

    Raises:
        InvalidRequest: An `X-Kairos-*` header is malformed.
    """
    identity = declared_identity(headers)
    aliases.add(identity, headers, caller.tenant)
    if told:
        aliases.add_from_body(identity, told)
    for field, value in route.items():
        identity.learn(field, value, "route")
    if caller.app is not None:  # its key is for that one alone, whatever else is said
        identity.app, identity.sources["app"] = caller.app, "route"
    add_traced(identity, headers)
    return identity


def names_in(path: str, raw_path: bytes) -> tuple[Route, str]:
    """Return the names at the beginning of a path, and the rest; without names, the whole path.

    `raw_path` is the path as sent; in any other spelling it has no names.
    """
    if not path.startswith(_STARTS) or raw_path != path.encode():
        return _NO_NAMES, path
    route: dict[Field, str] = {}
    parts = path.split("/", 2 * len(_FIELDS) + 1)[1:]
    while len(parts) > 2 and parts[0] in _FIELDS:
        kind, value, *parts = parts
        if _FIELDS[kind] in route or identifier_of(value) is None:
            return _NO_NAMES, path
        route[_FIELDS[kind]] = value
    return route, f"/{'/'.join(parts)}"


class NamedRoutes:
    """Middleware that strips the names from the path of a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            names, path = names_in(scope["path"], scope["raw_path"])
            if names:
                scope = {**scope, "path": path, "raw_path": path.encode()}
        await self._app(scope, receive, send)


def add_traced(identity: Identity, headers: Headers) -> None:
    baggage = headers.get(_BAGGAGE)
    if baggage is not None:
        _add_baggage(identity, baggage)
    if _TRACE_PARENT in headers and identity.workflow_id is None:
        trace = _IN_TRACE_PARENT.match(headers[_TRACE_PARENT].decode("latin-1"))
        identity.learn("workflow_id", trace and trace[1], "trace")


def _add_baggage(identity: Identity, baggage: bytes) -> None:
    if len(baggage) > _BAGGAGE_LIMIT:
        baggage = baggage[:_BAGGAGE_LIMIT].rpartition(b",")[0]  # a member cut short is another name
    values: dict[str, str] = {}
    for member in baggage.decode("latin-1").split(","):
        name, _, value = member.partition(";")[0].partition("=")
        text = identifier_of(unquote(value.strip()))
        if text is not None:
            values.setdefault(name.strip(), text)
    for name, field in _BAGGAGE_FIELDS.items():
        identity.learn(field, values.get(name), "trace")
