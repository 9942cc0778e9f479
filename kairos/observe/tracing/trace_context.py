"""Which trace a call belongs to, and whether it is recorded: W3C trace context, level 2.

A call whose client sends a context goes on in the client's trace, and is recorded if that says so
(parent-based sampling). All other calls of a workflow are one trace, whose id comes of the
workflow, so that processes agree on it without a word. It begins anew each day, since some
workflows are conversations that never end. Of these traces a share is recorded, by the id's last 8
bytes, as OpenTelemetry's TraceIdRatioBased has it: so services that sample by the same share record
the same traces.
"""

import re
from collections.abc import Mapping
from hashlib import sha256

import msgspec

from kairos.core.header_names import RAW_HEADERS, Header
from kairos.core.model import SECOND

TRACE_PARENT_HEADER = RAW_HEADERS[Header.TRACE_PARENT]
TRACE_STATE_HEADER = b"tracestate"
_DAY_US = 86_400 * SECOND
_STATE_BYTES = 512  # the least that the W3C asks to carry
_SAMPLED = 1
# The W3C's format; of a later version what follows is not read.
_CONTEXT = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """Where a call's spans hang."""

    trace_id: str  # 32 hexadecimal digits
    parent_id: str  # 16: of the client's span, or of the workflow's own
    is_recorded: bool
    state: str = ""  # the client's tracestate


def context_sent(headers: Mapping[bytes, bytes]) -> TraceContext | None:
    """What the client says; None: nothing, or nothing that can be understood."""
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
    """Of a workflow's own trace, for a call that arrived then. `salt`: what processes that agree
    have in common, and no others."""
    named = f"{salt}\0{tenant}\0{workflow_id}\0{at // _DAY_US}"
    return sha256(named.encode()).hexdigest()[:32]


def root_span_id(trace_id: str) -> str:
    """Of the span of a whole workflow in its own trace: the same wherever it is asked for. It is
    never all zeros, which would be no id, but once in 2^64 times."""
    return sha256(trace_id.encode()).hexdigest()[:16]


def is_sampled(trace_id: str, ratio: float) -> bool:
    return int(trace_id[16:], 16) < round(ratio * (1 << 64))


def traceparent(trace_id: str, span_id: str, *, is_recorded: bool) -> bytes:
    return f"00-{trace_id}-{span_id}-0{int(is_recorded)}".encode()
