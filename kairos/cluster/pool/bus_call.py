"""Parsing of calls that arrive over the bus."""

import asyncio
import re

import msgspec

from kairos.cluster.kafka.items import ReceivedMessage
from kairos.cluster.pool.messages import CallHeaders, read_call_headers
from kairos.core import (
    BUS_HEADERS,
    STANDARD_CLASS,
    TRACEPARENT_PATTERN,
    Header,
    InvalidRequest,
    Request,
    Source,
    Sources,
)
from kairos.request import Body, read_body

TENANT = "default"  # of all callers over the bus


class BusCall(msgspec.Struct):
    """A call that arrived over the bus, and the topics that await its answer."""

    headers: CallHeaders
    traceparent: str | None
    body: Body
    request: Request
    reply_to: set[str]
    left: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    admitted: bool = False  # the balancer knows it
    abandoned: bool = False  # another process has taken over: this one reports nothing more of it
    task: asyncio.Task[None] | None = None
    answer: bytes | None = None


def read_call(message: ReceivedMessage, now: int) -> BusCall:
    """Parse a call.

    Raises:
        InvalidRequest: The message is not a valid LLM call.
    """
    headers = read_call_headers(dict(message.headers))
    body = read_body(message.value or b"", chat=True, streams_usage=False)
    if body.stream:
        raise InvalidRequest("over the bus an answer comes whole: leave out 'stream'")
    said: dict[str, Source] = {
        field: "declared"
        for field in Sources.__struct_fields__
        if getattr(headers, field) is not None
    }
    request = Request(
        id=headers.request_id,
        tenant=TENANT,
        workflow_id=headers.workflow_id or headers.request_id,
        app=headers.app,
        agent=headers.agent,
        upstream=headers.upstream,
        parent_ids=(headers.parent,) if headers.parent is not None else (),
        sources=Sources(**said),
        attempt=headers.attempt,
        service_class=headers.service_class or STANDARD_CLASS,
        deadline_at=headers.deadline,
        budget=headers.budget,
        model=body.model,
        workflow_started_at=min(headers.started_at or now, now),
        arrived_at=min(message.at, now),
        prompt_tokens=body.prompt_tokens,
        completion_tokens=body.completion_tokens,
        completion_limit=body.completion_limit,
        sequences=body.sequences,
        prefix=body.prefix,
        prefix_units=body.prefix_units,
    )
    traceparent = message.headers.get(BUS_HEADERS[Header.TRACE_PARENT], "")
    is_trace = re.fullmatch(TRACEPARENT_PATTERN, traceparent) is not None
    return BusCall(headers, traceparent if is_trace else None, body, request, {headers.reply_to})
