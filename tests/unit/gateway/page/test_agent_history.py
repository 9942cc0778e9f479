"""How what is known of agents changed, minute by minute."""

import asyncio

import pytest

from kairos.core import SECOND, AgentRank, Orchestrator, ProfilesLearnt, Unavailable
from kairos.gateway.page import agents as module
from kairos.gateway.page.agents import Agents
from tests.support.core import learnt
from tests.support.simulate import build

MINUTE = 60 * SECOND


class Watched:
    def __init__(self):
        self.at, self.orchestrator, self.balancer = 100 * SECOND, Orchestrator(), build.balancer()
        self.history = Agents(
            lambda: self.at, lambda: self.balancer.estimates, lambda: self.orchestrator
        )

    def sample(self, agent="a", tenant="acme"):
        sample = learnt.sample(agent, SECOND, app="shop", tenant=tenant)
        self.orchestrator.profiles.add(sample)

    def rank(self, value):
        ranks = (AgentRank("acme", "shop", "a", value),)
        self.balancer.handle(ProfilesLearnt(ranks=ranks), self.at)

    def note(self, tenant="acme"):
        self.history.record_changes(tenant)
        self.at += MINUTE

    def points(self, agent="a"):
        return self.history.history("acme", "shop", agent).points


@pytest.fixture
def watched():
    return Watched()


def test_a_point_is_noted_where_something_has_changed(watched):
    watched.sample()
    watched.note()
    watched.note()
    watched.rank(2.0 * SECOND)
    watched.note()
    watched.sample()
    watched.note()
    told = [(each.at, each.samples, each.rank_s) for each in watched.points()]
    assert told == [
        (100 * SECOND, 1, None),
        (100 * SECOND + 2 * MINUTE, 1, 2.0),
        (100 * SECOND + 3 * MINUTE, 2, 2.0),
    ]


def test_only_so_many_points_and_agents_are_kept(watched, monkeypatch):
    monkeypatch.setattr(module, "POINTS", 3)
    monkeypatch.setattr(module, "MOST_AGENTS", 4)
    for _ in range(6):
        watched.sample()
        watched.note()
    assert [each.samples for each in watched.points()] == [4, 5, 6]
    for n in range(9):
        watched.sample(f"other-{n}", tenant="bell")
        watched.note("bell")
    assert watched.points() == []
    assert len(watched.history._known) == 4


async def test_while_others_follow_the_workflows_it_waits(monkeypatch):
    monkeypatch.setattr(module, "EVERY_S", 0.001)
    asked = []

    def elsewhere():
        asked.append(1)
        raise Unavailable("it stands by")

    task = asyncio.create_task(Agents(lambda: 0, lambda: None, elsewhere).run())
    async with asyncio.timeout(60):
        while len(asked) < 3:
            await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_of_an_agent_that_is_not_known_there_are_no_points(watched):
    assert watched.points("nobody") == []
