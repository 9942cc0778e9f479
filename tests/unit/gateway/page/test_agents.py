"""Pages of what was learnt of agents, by tenant."""

import pytest

from kairos.core import SECOND, AgentRank, Orchestrator, ProfilesLearnt
from kairos.gateway.page import agents as module
from kairos.gateway.page.agents import Agents
from tests.support.core import learnt
from tests.support.simulate import build


@pytest.fixture
def page(monkeypatch):
    """`page(TENANT, OFFSET)`, where two tenants have agents: three rows at once."""
    monkeypatch.setattr(module, "AGENTS_PAGE", 3)
    orchestrator, balancer = Orchestrator(), build.balancer()
    for n, (tenant, agent) in enumerate([("bell", "z"), *(("acme", each) for each in "abc")]):
        orchestrator.profiles.add(
            learnt.sample(agent, SECOND, app="shop", tenant=tenant, completion_tokens=n)
        )
    balancer.handle(ProfilesLearnt(ranks=(AgentRank("acme", "shop", "b", 2.0 * SECOND),)), 0)
    agents = Agents(lambda: 0, lambda: balancer.estimates, lambda: orchestrator)
    return lambda tenant=None, offset=0: agents.page(tenant, offset)()


def test_without_a_tenant_it_is_that_of_the_first(page):
    seen = page()
    assert (seen.tenants, seen.tenant) == (["acme", "bell"], "acme")
    assert seen == page("acme")
    assert [each.agent for each in page("bell").agents.data] == ["*", "z"]
    assert page("nobody").agents.data == []


def test_pages_follow_each_other_and_an_agent_has_its_rank(page):
    first, second = page("acme"), page("acme", 3)
    assert [first.agents.agents_total, second.agents.agents_total] == [4, 4]
    assert [each.agent for each in first.agents.data] == ["*", "a", "b"]
    assert [each.agent for each in second.agents.data] == ["c"]
    assert [each.rank for each in first.agents.data] == [None, None, 2.0]


def test_where_nothing_is_known_no_tenant_is_shown():
    agents = Agents(lambda: 0, lambda: build.balancer().estimates, Orchestrator)
    seen = agents.page(None, 0)()
    assert (seen.tenants, seen.tenant, seen.agents.data) == ([], None, [])
