"""A span, as it is made: values alone, so that to make one costs little. What turns it into
OpenTelemetry's own is `otlp_exporter.py`, in a thread."""

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
    """Ids are hexadecimal, instants µs since the epoch. It holds no text of prompts or answers."""

    name: str
    kind: Kind
    trace_id: str
    span_id: str
    parent_id: str | None  # None: it is the root
    state: str = ""  # tracestate
    began_at: int
    ended_at: int
    attributes: Attributes = {}
    events: tuple[SpanEvent, ...] = ()
    error: str | None = None  # the code of the error with which it ended
