"""What open workflows teach before they end."""

import math

import msgspec
import numpy as np
import pytest

from kairos.call_row import CallRow
from kairos.events import Arrived, Dispatch, Finished, Record, WorkflowEnded
from kairos.learner import Learner
from kairos.learnt import POOLED
from kairos.model import SECOND
from kairos.orchestrator.open_workflows import (
    OPEN_CALLS,
    OpenCalls,
    OpenWorkflow,
    WorkflowCall,
    rows_of,
)
from kairos.orchestrator.orchestrator import Orchestrator
from kairos.orchestrator.remaining_model import fit
from kairos.position import Position, features
from tests.support import build
from tests.unit.orchestrator.test_remaining_model import NAMES, app_of

APP = ("default", "app")


def place(stage, served_us):
    return Position(stage=stage, visit=stage + 1, prompt_tokens=10, served_us=served_us)


def calls(count, *, begin=0, app="app"):
    row = CallRow(build.request("r", app=app, agent="worker"))
    return [WorkflowCall(row, place(n, n * SECOND)) for n in range(begin, begin + count)]


def left_us(workflow, models=()):
    return [us for _, _, us in workflow.rows(dict(models))]


class App:
    """One app whose calls take a second each, one after the other."""

    def __init__(self, name="app"):
        self.name = name
        self.learner = Learner(Orchestrator())
        self.at = 0
        self.calls = 0

    def call(self, workflow, *, began_at=0, ends=True):
        request = build.request(
            f"r{self.calls}",
            at=self.at,
            workflow_id=workflow,
            workflow_started_at=began_at,
            app=self.name,
            agent="worker",
        )
        self.calls += 1
        self.learner.observe(Record(self.at, Arrived(request), (Dispatch(request.id, "engine"),)))
        if ends:
            self.at += SECOND
            self.learner.observe(Record(self.at, Finished(request.id, 10, 10)))

    def run(self, workflow, count):
        for _ in range(count):
            self.call(workflow)

    def end(self, workflow):
        self.learner.observe(Record(self.at, WorkflowEnded("default", workflow)))

    def learn(self):
        """The models that come of it, by app."""
        return {model.app: model for model in self.learner.step().models}


def test_after_a_call_remained_what_its_workflow_was_served_since_and_what_is_expected_now():
    model = fit(*APP, app_of(200, lambda stage, _: 60e6 / (stage + 1)), NAMES)
    workflow = OpenWorkflow(3 * SECOND, calls(3), calls(2, begin=3))

    expected = [
        model.remaining_us("worker", features(seen.position)) for seen in workflow.in_flight
    ]
    left = max(expected)

    assert left > workflow.served_us
    since = [3 * SECOND, 2 * SECOND, SECOND]
    assert left_us(workflow, {APP: model}.items()) == [us + left for us in since]


@pytest.mark.parametrize("in_flight", [[], calls(1, begin=3)])
def test_at_least_as_much_is_left_as_a_workflow_was_served(in_flight):
    little = fit(*APP, app_of(200, lambda *_: 1_000), NAMES)
    workflow = OpenWorkflow(3 * SECOND, calls(3), in_flight)

    expected = [6 * SECOND, 5 * SECOND, 4 * SECOND]
    assert left_us(workflow) == left_us(workflow, {APP: little}.items()) == expected


def test_an_app_whose_short_workflows_ended_is_not_taken_for_one_of_short_workflows():
    """The long ones are under way: a call as far on as they are has much left."""
    app = App()
    for n in range(20):
        app.run(f"long{n}", 8)
        app.run(f"short{n}", 2)
        app.end(f"short{n}")
    late = features(place(6, 6 * SECOND))
    orchestrator = app.learner.orchestrator
    orchestrator.learn(app.learner.study(orchestrator.take_ended()))
    learning = app.learner.begin()
    blind = msgspec.structs.replace(learning, still_open=())

    for found in (app.learner.compute(learning), app.learner.compute(learning)):
        model = {each.app: each for each in found.models}["app"]
        assert model.remaining_us("worker", late) > 4 * SECOND
    (without,) = [each for each in blind.learn()[1] if each.app == "app"]
    assert without.remaining_us("worker", late) < 3 * SECOND


def test_what_has_not_ended_is_no_sample():
    app = App()
    app.run("open", 30)
    app.run("ended", 3)
    app.end("ended")
    found = app.learn()

    assert found["app"].samples == found[POOLED].samples == 3
    assert app.learner.orchestrator.profiles.status("default")[1].samples == 3


def test_a_workflow_that_was_under_way_when_it_was_first_seen_teaches_nothing():
    app = App()
    app.at = 10 * SECOND
    app.call("first", began_at=app.at)
    app.call("before", began_at=SECOND)

    assert [len(each.ended) for each in app.learner.orchestrator.still_open()] == [1]


def test_of_many_open_workflows_some_of_all_ages_are_looked_at():
    app = App()
    for n in range(2 * OPEN_CALLS):
        app.call(f"w{n}", ends=n % 2 == 0)
        app.call(f"w{n}")
    found = app.learner.orchestrator.still_open()

    seen = sum(len(each.ended) + len(each.in_flight) for each in found)
    assert OPEN_CALLS / 2 < seen <= OPEN_CALLS
    assert {len(each.in_flight) for each in found} == {0, 1}


def test_one_workflow_of_too_many_calls_is_left_out_and_no_other():
    app = App()
    app.run("endless", OPEN_CALLS + 1)
    app.run("one", 1)
    app.run("another", 2)
    assert [len(each.ended) for each in app.learner.orchestrator.still_open()] == [2]  # each 2nd


def test_what_is_known_says_what_is_expected_of_open_workflows():
    """Before a restart, and then each time that models are learnt."""
    much = fit(*APP, app_of(200, lambda *_: 3_600e6), {0: "worker"})
    app = App()
    app.learner.restore((), [much])
    first = app.learner.begin()
    found = {(each.tenant, each.app): each for each in app.learner.compute(first).models}
    app.run("open", 3)
    app.call("open", ends=False)
    app.run("ended", 1)
    app.end("ended")
    app.learner.orchestrator.learn(app.learner.study(app.learner.orchestrator.take_ended()))
    then = app.learner.begin()

    assert first.known == {APP: much}
    assert then.known == found
    (opened,) = then.still_open
    assert min(left_us(opened, then.known.items())) > 1_000 * SECOND


def test_calls_of_open_workflows_count_as_their_apps_and_their_agents():
    app, other = App(), App("other")
    for each in (app, other):
        each.run("ended", 2)
        each.end("ended")
    other.run("open", 5)
    for sample in other.learner.study(other.learner.orchestrator.take_ended()):
        app.learner.orchestrator.learn([sample])
    app.learner.orchestrator.learn(app.learner.study(app.learner.orchestrator.take_ended()))
    learning = app.learner.begin()
    still_open = rows_of(other.learner.orchestrator.still_open(), {})
    models = {data.app[1]: data for data in learning.models}

    assert models["app"].model(OpenCalls(still_open)) == models["app"].model()
    for name, key in (
        ("other", ("default", "other", "worker")),
        (POOLED, ("default", "other", POOLED)),
    ):
        data = models[name]
        group = data.numbers[key]
        added = [(*numbers, math.log(us), group) for _, numbers, us in still_open]
        names = {group: "worker"} if name == "other" else {}
        expected = fit(*data.app, data.rows, names, None, np.array(added))
        assert data.model(OpenCalls(still_open)) == expected != data.model()


def test_of_some_apps_the_rows_are_those_that_there_are_of_them_among_all():
    model = fit(*APP, app_of(200, lambda stage, _: 60e6 / (stage + 1)), NAMES)
    other = calls(2, app="other")
    workflows = [
        OpenWorkflow(3 * SECOND, calls(3), calls(2, begin=3)),
        OpenWorkflow(2 * SECOND, [*other, *calls(1)], calls(1, begin=3)),
        OpenWorkflow(SECOND, other, []),
    ]
    everything = rows_of(workflows, {APP: model})

    for apps in ({APP}, {(APP[0], "other")}, {("nobody", "none")}):
        expected = [row for row in everything if row[0][:2] in apps]
        assert rows_of(workflows, {APP: model}, apps) == expected
    assert len(everything) == 8


@pytest.mark.parametrize("ends", [(True, True), (False, True), (True, False), (False, False)])
def test_what_has_ended_is_told_from_what_runs_whatever_came_first(ends):
    app = App()
    for each in ends:
        app.call("w", ends=each)
    (found,) = app.learner.orchestrator.still_open()
    assert (len(found.ended), len(found.in_flight)) == (sum(ends), 2 - sum(ends))
    assert all(call.row.ended_at is not None for call in found.ended)
    assert all(call.row.ended_at is None for call in found.in_flight)


def test_models_that_are_read_one_by_one_are_restored_as_well():
    model = fit(*APP, app_of(200, lambda *_: 3_600e6), {0: "worker"})
    app = App()
    app.learner.restore(iter(()), iter([model]))
    assert app.learner.begin().known == {APP: model}
