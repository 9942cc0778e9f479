"""The span of a whole workflow."""

from kairos.core import SECOND, Arrived, Failed, Finished, Record, WorkflowEnded
from kairos.observe.tracing import tracing
from kairos.observe.tracing.trace_context import root_span_id, workflow_trace_id
from kairos.observe.tracing.tracing import WorkflowSpans
from tests.support.simulate import build

IDLE_US = 60 * SECOND


class Course:
    def __init__(self):
        self.spans = []
        self.observe = WorkflowSpans("salt", self.spans.extend, idle_us=IDLE_US)

    def tell(self, at, event):
        self.observe(Record(at, event))

    def call(self, name, workflow, at, *, trace_id=None, **fields):
        own = workflow_trace_id("salt", "default", workflow, at)
        request = build.request(
            name, at=at, workflow_id=workflow, trace_id=trace_id or own, app="a", **fields
        )
        self.tell(at, Arrived(request))
        return own


def test_it_reaches_from_the_first_call_to_the_workflows_end():
    course = Course()
    trace_id = course.call("x", "w", 10)
    course.call("y", "w", 20)
    course.tell(30, Finished("x"))
    course.tell(35, Failed("y", "gone"))
    course.tell(40, WorkflowEnded("default", "w"))
    (span,) = course.spans
    assert (span.began_at, span.ended_at) == (10, 40)
    assert (span.trace_id, span.span_id) == (trace_id, root_span_id(trace_id))
    assert (span.parent_id, span.error) == (None, None)
    assert [span.attributes[f"kairos.{each}"] for each in ("calls", "calls_failed")] == [2, 1]


def test_a_workflow_in_a_clients_trace_has_none():
    course = Course()
    course.call("x", "w", 10, trace_id="0" * 31 + "1")
    course.tell(40, WorkflowEnded("default", "w"))
    assert course.spans == []


def test_one_that_is_not_recorded_has_none():
    course = Course()
    course.tell(10, Arrived(build.request("x", at=10, workflow_id="w")))
    course.tell(40, WorkflowEnded("default", "w"))
    assert course.spans == []


def test_one_that_fell_silent_ends_with_its_last_call():
    course = Course()
    course.call("x", "w", 10)
    course.tell(30, Finished("x"))
    course.call("y", "other", 31 + IDLE_US)
    (span,) = course.spans
    assert span.ended_at == 30


def test_one_that_is_cancelled_says_so():
    course = Course()
    course.call("x", "w", 10)
    course.tell(40, WorkflowEnded("default", "w", cancelled=True))
    assert course.spans[0].error == "cancelled"


def test_as_many_are_kept_as_are_allowed(monkeypatch):
    monkeypatch.setattr(tracing, "MAX_WORKFLOWS", 3)
    course = Course()
    for number in range(5):
        course.call(f"c{number}", f"w{number}", 10 + number)
    assert [each.attributes["gen_ai.conversation.id"] for each in course.spans] == ["w0", "w1"]
