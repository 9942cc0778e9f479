"""What of a run was under way when."""

from kairos.workflows import IssueCall, RunFunction, RunProcessor, Timeline
from kairos.workflows.execute.facts import CallAnswered, CallBroke, InputEnded
from kairos.workflows.execute.observation import MOST_ACTIVITIES, Activity


def processor(call, node="vectors"):
    return RunProcessor(call, 0, node, 3, 1, "vectors", "s", 0, "embed", None, {}, None, 0)


def test_a_call_lasts_from_its_command_to_its_fact():
    timeline = Timeline()
    timeline.begin_call(processor(7), 100)
    timeline.record_fact(InputEnded(), 120)
    timeline.record_fact(CallAnswered(7, []), 250)

    assert timeline.activities == [Activity(0, 3, "vectors", "vectors", "embed", 100, 250)]
    assert timeline.activities[0].us == 150


def test_calls_of_models_and_functions_are_in_it_and_broken_ones_too():
    timeline = Timeline()
    timeline.begin_call(IssueCall(1, 0, "a", 0, 1, "a", "s", 0, None, {}), 0)
    timeline.begin_call(RunFunction(2, 0, "b", 0, 1, "b", "s", 0, "f", {}, None), 1)
    timeline.record_fact(CallBroke(2, "no", retry=False), 5)
    timeline.record_fact(CallAnswered(1, "yes"), 9)

    assert [(e.kind, e.begun_us, e.ended_us) for e in timeline.activities] == [
        ("call", 1, 5),
        ("llm", 0, 9),
    ]


def test_what_a_retry_waits_is_not_of_its_time():
    timeline = Timeline()
    timeline.begin_call(IssueCall(1, 0, "a", 0, 2, "a", "s", 40, None, {}), 0)
    timeline.record_fact(CallAnswered(1, "yes"), 50)

    assert timeline.activities[0].us == 10


def test_it_is_bounded():
    timeline = Timeline()
    for call in range(MOST_ACTIVITIES + 1):
        timeline.begin_call(processor(call), call)
        timeline.record_fact(CallAnswered(call, []), call + 1)

    assert len(timeline.activities) == MOST_ACTIVITIES
