"""Identity from W3C trace context, after all other declared sources.

`baggage` (`kairos.*`, then the GenAI conventions' names of agent and conversation), and the trace
id of `traceparent` as the workflow. Values that are not identifiers are ignored, since they were
not meant for Kairos.
"""

import re
from urllib.parse import unquote

from kairos.core import RAW_HEADERS, TRACEPARENT_PATTERN, Header
from kairos.request.identity.identity import Field, Headers, Identity, identifier_of

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
