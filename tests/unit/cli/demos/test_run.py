"""What a run of the demo makes of the results that it sees."""

from types import SimpleNamespace

from kairos.agent import Application
from kairos.cli.demos.plan import DemoSubmission
from kairos.cli.demos.run import Outcome, Run
from kairos.cluster import Envelope, write_message
from kairos.core import RunMetrics, WorkflowEnded

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def a_run(told):
    service = SimpleNamespace(brain=SimpleNamespace(now=lambda: 0, feed=told.append))
    run = Run(service, RunMetrics(), "id", None)
    submission = DemoSubmission(at_us=0, app=Application("qa", entry="a"), question="?", value={})
    run.outcomes["mine"] = Outcome(submission=submission, workflow_id="mine", submitted_at=0)
    return run


def a_result(workflow_id, value):
    envelope = Envelope(
        workflow_id=workflow_id,
        app="qa",
        agent="user",
        upstream="a",
        started_at=1,
        traceparent=TRACE,
    )
    return write_message(envelope, value)


def test_the_first_result_of_a_workflow_counts_and_ends_it():
    told = []
    run = a_run(told)
    run._take_result(a_result("mine", {"n": 1}))
    run._take_result(a_result("mine", {"n": 2}))
    assert run.outcomes["mine"].result == {"n": 1}
    assert told == [WorkflowEnded("default", "mine")]


def test_results_of_other_runs_on_the_bus_are_left_alone():
    told = []
    run = a_run(told)
    run._take_result(a_result("another's", {}))
    assert (run.finished, told) == (0, [])
