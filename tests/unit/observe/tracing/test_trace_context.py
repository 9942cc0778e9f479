"""Which trace a call belongs to, and whether it is recorded."""

import pytest

from kairos.core import SECOND
from kairos.observe.tracing.trace_context import (
    context_sent,
    is_sampled,
    root_span_id,
    traceparent,
    workflow_trace_id,
)

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
DAY = 86_400 * SECOND


def sent(value, state=None):
    headers = {b"traceparent": value.encode()}
    if state is not None:
        headers[b"tracestate"] = state
    return context_sent(headers)


@pytest.mark.parametrize(("flags", "recorded"), [("01", True), ("00", False), ("03", True)])
def test_a_clients_context_says_whether_it_is_recorded(flags, recorded):
    found = sent(f"00-{TRACE}-{PARENT}-{flags}")
    assert (found.trace_id, found.parent_id, found.is_recorded) == (TRACE, PARENT, recorded)


def test_of_a_later_version_what_is_known_is_read():
    assert sent(f"01-{TRACE}-{PARENT}-01-more").trace_id == TRACE


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"00-{TRACE}-{PARENT}-01-more",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01\n",
    ],
)
def test_what_is_no_context_is_none(value):
    assert sent(value) is None


def test_a_state_that_is_too_long_is_left_out():
    whole = f"00-{TRACE}-{PARENT}-01"
    assert sent(whole, b"a=1").state == "a=1"
    assert sent(whole, b"a=" + b"1" * 600).state == ""


def test_calls_of_a_workflow_are_one_trace_and_others_another():
    of = workflow_trace_id("salt", "tenant", "w", DAY)
    assert of == workflow_trace_id("salt", "tenant", "w", 2 * DAY - 1)
    others = [("x", "tenant", "w"), ("salt", "x", "w"), ("salt", "tenant", "x")]
    assert of not in {workflow_trace_id(*each, DAY) for each in others}
    assert of != workflow_trace_id("salt", "tenant", "w", 2 * DAY)  # the next day
    assert traceparent(of, root_span_id(of), is_recorded=True) == (
        f"00-{of}-{root_span_id(of)}-01".encode()
    )


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 1.0])
def test_a_share_of_all_traces_is_recorded(ratio):
    ids = [workflow_trace_id("s", "t", str(number), 0) for number in range(4_000)]
    assert sum(is_sampled(each, ratio) for each in ids) / 4_000 == pytest.approx(ratio, abs=0.03)


def test_the_share_is_that_of_opentelemetry():
    from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

    sampler = TraceIdRatioBased(0.3)
    for number in range(200):
        trace_id = workflow_trace_id("s", "t", str(number), 0)
        decision = sampler.should_sample(None, int(trace_id, 16), "x").decision
        assert is_sampled(trace_id, 0.3) == (decision is Decision.RECORD_AND_SAMPLE)
