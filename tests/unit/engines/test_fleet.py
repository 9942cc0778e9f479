"""Which instances a process uses, where it does not decide itself; and who may change them."""

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest

from kairos.core import Dispatch, Refuse
from kairos.engines import Fleet, Monitor, fleet
from kairos.gateway.operators.admin import build_admin
from kairos.proxy import EngineClient, HttpEngine
from kairos.settings import EngineSettings
from tests.support.loop_clock import moved_clock
from tests.support.simulate import build
from tests.support.waiting import Told, until

HERE, THERE = EngineSettings(url="http://here:1"), EngineSettings(url="http://there:2")


@pytest.fixture
def engine():
    return HttpEngine(EngineClient())


@pytest.fixture
async def clock():
    with moved_clock() as clock:
        yield clock


@pytest.fixture
async def standby(engine, clock, monkeypatch):
    """The instances of a process through which calls go on which others decide."""
    monkeypatch.setattr(fleet, "LOOK_S", 0.001)
    balancer = build.balancer()
    made = Fleet(
        Monitor(lambda _: None), engine.client.upstreams, engine.calls.running, lambda: balancer
    )
    made.follow([HERE, THERE])
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.wait([task])


async def test_where_others_decide_the_calls_that_go_through_this_process_are_waited_for(
    standby, engine, clock
):
    going, waiting, refused = calls = [Told() for _ in range(3)]
    for name, call in zip(("going", "waiting", "refused"), calls, strict=True):
        engine.calls.expect(name, call)
    engine.calls.dispatch(Dispatch("going", "here:1"))
    engine.calls.refuse(Refuse("refused", None, "waited_too_long"))
    assert standby.drain("here:1").running == 1
    assert standby.drain("there:2").running == 0
    await until(lambda: [each.id for each in standby.views()] == ["here:1"])
    assert list(engine.client.upstreams) == ["here:1"]
    await clock.passes(10 * fleet.LOOK_S)
    assert standby.draining() == {"here:1": 1}

    engine.calls.forget("going")
    await until(lambda: standby.views() == [])
    assert engine.client.upstreams == {}
    assert (going.said, waiting.said) == (["here:1"], [])
    assert refused.said == [("waited_too_long", False)]


def routes(app):
    return {
        (method, route.path)
        for route in app.routes
        for method in route.methods
        if "instances" in route.path
    }


async def test_where_metrics_are_asked_for_instances_can_be_seen_but_not_changed(standby):
    brain, monitor = (
        SimpleNamespace(decides=True, add_tenants=lambda _: None),
        Monitor(lambda _: None),
    )
    seen = {("GET", "/admin/instances")}
    changed = {("POST", "/admin/instances"), ("DELETE", "/admin/instances/{instance_id}")}
    made = partial(build_admin, brain, monitor, standby)
    assert routes(made()) == seen | changed
    assert routes(made(has_changes=False)) == seen


async def test_a_process_goes_on_with_the_instances_that_one_before_it_had(standby):
    added = EngineSettings(url="http://added:3")
    standby.restore([HERE, added], ["added:3"])  # the other one was removed by hand
    states = {each.id: each.state for each in standby.views()}
    assert states == {"here:1": "not_in_use", "there:2": "draining", "added:3": "draining"}


async def test_whoever_listens_hears_which_instances_there_are_and_which_drain(engine):
    heard = []
    made = Fleet(
        Monitor(lambda _: None),
        engine.client.upstreams,
        engine.calls.running,
        build.balancer,
        lambda *each: heard.append(each),
    )
    made.follow([HERE, THERE])
    made.drain("here:1")
    assert heard == [((HERE,), ()), ((HERE, THERE), ()), ((HERE, THERE), ("here:1",))]
