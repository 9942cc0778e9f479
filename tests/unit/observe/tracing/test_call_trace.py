"""The spans of one call, from the facts that end it."""

import itertools

import pytest

from kairos.core import Bounced, Cancelled, Dispatch, Failed, Finished, FirstToken, Unavailable
from kairos.observe.tracing.call_trace import CallTrace
from kairos.observe.tracing.trace_context import TraceContext
from tests.support.simulate import build

ENDS = {
    "finished": lambda trace, at: trace.record_fact(Finished("a"), at),
    "failed": lambda trace, at: trace.record_fact(Failed("a", "gone"), at),
    "cancelled": lambda trace, at: trace.record_fact(Cancelled("a"), at),
    "refused": lambda trace, at: trace.record_refusal(Unavailable("not now"), at),
}


class Traced:
    """The trace of a call that arrived at 10."""

    def __init__(self):
        self.at, self.emitted, numbers = 10, [], itertools.count()
        self.trace = CallTrace(
            TraceContext("f" * 32, "e" * 16, is_recorded=True),
            build.request("a", at=10),
            "POST",
            "/v1/chat/completions",
            streams=False,
            now=lambda: self.at,
            new_id=lambda: f"{next(numbers):016x}",
            emit=lambda spans: self.emitted.append(list(spans)),
        )

    def send(self, at):
        self.at, headers = at, {}
        self.trace.record_dispatch(Dispatch("a", "i:8000"), headers)
        return headers


@pytest.mark.parametrize("second", ENDS)
@pytest.mark.parametrize("first", ENDS)
def test_a_call_that_ends_twice_is_recorded_once_as_it_ended_first(first, second):
    traced = Traced()
    traced.send(20)
    ENDS[first](traced.trace, 30)
    ENDS[second](traced.trace, 40)
    (spans,) = traced.emitted
    assert (spans[-1].kind, spans[-1].ended_at) == ("server", 30)
    assert (spans[-1].error is None) is (first == "finished")


def test_waits_and_attempts_follow_each_other_below_the_call():
    traced = Traced()
    first = traced.send(20)
    traced.trace.record_fact(Bounced("a", "busy"), 30)
    second = traced.send(45)
    traced.trace.record_fact(FirstToken("a"), 50)
    ENDS["finished"](traced.trace, 60)
    (spans,) = traced.emitted
    call = spans[-1]
    assert [(each.name.split()[0], each.began_at, each.ended_at) for each in spans] == [
        *(("queue", 10, 20), ("chat", 20, 30), ("queue", 30, 45), ("chat", 45, 60)),
        ("POST", 10, 60),
    ]
    assert {each.parent_id for each in spans[:-1]} == {call.span_id}
    assert len({each.span_id for each in spans}) == len(spans)
    said = [headers[b"traceparent"].decode().split("-")[2] for headers in (first, second)]
    assert said == [spans[1].span_id, spans[3].span_id]
