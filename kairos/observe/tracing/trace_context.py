"""Spans, and trace and sampling decision of a call: W3C trace context, level 2.

A call whose client sends a context continues the client's trace, and is recorded if the context
says so (parent-based sampling). All other calls of a workflow are one trace, whose id is derived
from the workflow, so that processes agree on it without communication. It changes each day, since
some workflows are conversations that never end. A share of these traces is recorded, by the id's
last 8 bytes, as in OpenTelemetry's TraceIdRatioBased: so services with the same ratio record the
same traces.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Literal

import msgspec

from kairos.core import RAW_HEADERS, SECOND, Header

TRACE_PARENT_HEADER = RAW_HEADERS[Header.TRACE_PARENT]
TRACE_STATE_HEADER = b"tracestate"
_DAY_US = 86_400 * SECOND
_STATE_BYTES = 512  # minimum that the W3C requires to propagate
_SAMPLED = 1
# The W3C's format; fields added by later versions are ignored.
_CONTEXT = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)

Kind = Literal["internal", "server", "client"]
Attributes = Mapping[str, str | int | float | bool]


class SpanEvent(msgspec.Struct, frozen=True, gc=False):
    name: str
    at: int  # µs since the epoch
    attributes: Attributes = {}


class TraceSpan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Span of a trace, without text of prompts or answers.

    Ids are hexadecimal, times µs since the epoch.
    """

    name: str
    kind: Kind
    trace_id: str
    span_id: str
    parent_id: str | None  # None: root span
    state: str = ""  # tracestate
    began_at: int
    ended_at: int
    attributes: Attributes = {}
    events: tuple[SpanEvent, ...] = ()
    error: str | None = None  # the code of the error with which it ended


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """Trace and parent of a call's spans."""

    trace_id: str  # 32 hexadecimal digits
    parent_id: str  # 16 digits: the client's span, or the workflow's own
    is_recorded: bool
    state: str = ""  # the client's tracestate


def context_sent(headers: Mapping[bytes, bytes]) -> TraceContext | None:
    """Return the client's context; None if it is missing or invalid."""
    value = headers.get(TRACE_PARENT_HEADER)
    if value is None:
        return None
    found = _CONTEXT.fullmatch(value)
    if found is None or (found[1] == b"00" and len(value) != 55):
        return None
    state = headers.get(TRACE_STATE_HEADER, b"")
    return TraceContext(
        found[2].decode(),
        found[3].decode(),
        bool(int(found[4], 16) & _SAMPLED),
        state.decode("latin-1") if len(state) <= _STATE_BYTES else "",
    )


def workflow_trace_id(salt: str, tenant: str, workflow_id: str, at: int) -> str:
    """Return the id of a workflow's own trace, for a call that arrived at this time.

    `salt` is shared by exactly the processes that must agree on the id.
    """
    named = f"{salt}\0{tenant}\0{workflow_id}\0{at // _DAY_US}"
    return sha256(named.encode()).hexdigest()[:32]


def root_span_id(trace_id: str) -> str:
    """Return the id of the span of a whole workflow in its own trace, derived from the trace's id.

    It is all zeros, and so invalid, with a probability of 2^-64.
    """
    return sha256(trace_id.encode()).hexdigest()[:16]


def is_sampled(trace_id: str, ratio: float) -> bool:
    return int(trace_id[16:], 16) < round(ratio * (1 << 64))


def traceparent(trace_id: str, span_id: str, *, is_recorded: bool) -> bytes:
    return f"00-{trace_id}-{span_id}-0{int(is_recorded)}".encode()
