"""What open workflows teach before they end."""

import math

import msgspec
import numpy as np
import pytest

from kairos.core import (
    POOLED_AGENT,
    SECOND,
    Arrived,
    Dispatch,
    Finished,
    Learner,
    Orchestrator,
    ProfilesLearnt,
    Record,
    WorkflowEnded,
)
from kairos.core.orchestrator.open_workflows import OPEN_CALLS, OpenCalls, rows_of
from kairos.core.orchestrator.remaining_model import fit
from kairos.core.position import Position, features
from tests.support.simulate import build
from tests.unit.core.orchestrator.test_remaining_model import app_of

APP = ("default", "app")


def place(stage, served_us):
    return Position(stage=stage, visit=stage + 1, prompt_tokens=10, served_us=served_us)


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
    learning = app.learner.collect_changes()
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

    assert found["app"].samples == found[POOLED_AGENT].samples == 3
    assert app.learner.orchestrator.profiles.status("default")[1].samples == 3


def test_of_many_open_workflows_some_of_all_ages_are_looked_at():
    app = App()
    for n in range(2 * OPEN_CALLS):
        app.call(f"w{n}", ends=n % 2 == 0)
        app.call(f"w{n}")
    found = app.learner.orchestrator.still_open()

    seen = sum(len(each.ended) + len(each.in_flight) for each in found)
    assert OPEN_CALLS / 2 < seen <= OPEN_CALLS
    assert {len(each.in_flight) for each in found} == {0, 1}


def test_what_is_known_says_what_is_expected_of_open_workflows():
    """Before a restart, and then each time that models are learnt."""
    much = fit(*APP, app_of(200, lambda *_: 3_600e6), {0: "worker"})
    app = App()
    app.learner.restore(ProfilesLearnt(models=(much,)))
    first = app.learner.collect_changes()
    found = {(each.tenant, each.app): each for each in app.learner.compute(first).models}
    app.run("open", 3)
    app.call("open", ends=False)
    app.run("ended", 1)
    app.end("ended")
    app.learner.orchestrator.learn(app.learner.study(app.learner.orchestrator.take_ended()))
    then = app.learner.collect_changes()

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
    learning = app.learner.collect_changes()
    still_open = rows_of(other.learner.orchestrator.still_open(), {})
    models = {data.app[1]: data for data in learning.models}

    assert models["app"].model(OpenCalls(still_open)) == models["app"].model()
    for name, key in (
        ("other", ("default", "other", "worker")),
        (POOLED_AGENT, ("default", "other", POOLED_AGENT)),
    ):
        data = models[name]
        group = data.numbers[key]
        added = [(*numbers, math.log(us), group) for _, numbers, us in still_open]
        names = {group: "worker"} if name == "other" else {}
        expected = fit(*data.app, data.rows, names, None, np.array(added))
        assert data.model(OpenCalls(still_open)) == expected != data.model()


@pytest.mark.parametrize("ends", [(True, True), (False, True), (True, False), (False, False)])
def test_what_has_ended_is_told_from_what_runs_whatever_came_first(ends):
    app = App()
    for each in ends:
        app.call("w", ends=each)
    (found,) = app.learner.orchestrator.still_open()
    assert (len(found.ended), len(found.in_flight)) == (sum(ends), 2 - sum(ends))
    assert all(call.row.ended_at is not None for call in found.ended)
    assert all(call.row.ended_at is None for call in found.in_flight)
