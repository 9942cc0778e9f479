"""Span as plain values, which are cheap to create.

`otlp_exporter.py` converts it to OpenTelemetry's own type in a thread.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

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
