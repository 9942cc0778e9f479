"""Which workflows there are, and one of them explained."""

from types import SimpleNamespace

import pytest

from kairos.core import (
    SECOND,
    Arrived,
    Dispatch,
    Finished,
    FirstToken,
    Orchestrator,
    Record,
    WorkflowEnded,
    WorkflowNotFound,
)
from kairos.gateway.page import workflows as module
from kairos.gateway.page.workflows import WorkflowQuery, Workflows, explain_workflow, find_workflows
from tests.support.simulate import build


class Followed:
    def __init__(self):
        self.orchestrator, self.at = Orchestrator(), 0
        self.page = Workflows(SimpleNamespace(now=lambda: self.at), lambda: self.orchestrator)

    def tell(self, at, fact, *commands):
        self.at = at * SECOND
        self.orchestrator.observe(Record(self.at, fact, commands))

    def call(self, name, workflow, arrived, gone=None, ended=None, **fields):
        made = build.request(
            name, at=arrived * SECOND, workflow_id=workflow, workflow_started_at=arrived * SECOND,
            **fields,
        )  # fmt: skip
        self.tell(arrived, Arrived(made))
        if gone is not None:
            self.tell(gone, FirstToken("other"), Dispatch(name, "i"))
        if ended is not None:
            self.tell(ended, Finished(name, 10, 5))

    def find(self, offset=0, **query):
        return find_workflows(*self.page.remembered()[:1], WorkflowQuery(**query), offset, self.at)

    def found(self, **query):
        return [each.id for each in self.find(**query).workflows]


@pytest.fixture
def followed():
    """Four of two tenants and three apps: one that ended, one cancelled, one that waits, one whose
    agents work."""
    made = Followed()
    made.call("a", "ends", 0, 1, 3, app="shop")
    made.tell(4, WorkflowEnded("default", "ends"))
    made.call("b", "cancelled", 4, 5, 6, app="shop")
    made.tell(7, WorkflowEnded("default", "cancelled", cancelled=True))
    made.call("c", "away", 7, 8, 9, app="blog")
    made.call("d", "waits", 10, app="shop", tenant="acme")
    made.at = 20 * SECOND
    return made


def test_each_is_found_by_what_is_known_of_it(followed):
    assert followed.found() == ["away", "waits", "ends", "cancelled"]
    assert followed.found(order="newest") == ["waits", "away", "cancelled", "ends"]
    assert followed.found(app="shop") == ["waits", "ends", "cancelled"]
    assert followed.found(tenant="acme") == ["waits"]
    assert followed.found(part="end") == ["ends"]
    assert followed.found(state="open") == ["away", "waits"]
    assert followed.found(state="ended") == ["ends"]
    assert followed.found(state="cancelled", app="shop") == ["cancelled"]
    assert followed.found(least_s=4) == ["away", "waits", "ends"]
    assert followed.found(app="none") == []


def test_of_each_it_is_said_what_it_does_and_where_its_time_went(followed):
    rows = {each.id: each for each in followed.find().workflows}
    assert {name: row.doing for name, row in rows.items()} == {
        "ends": None, "cancelled": None, "away": "away", "waits": "waits",
    }  # fmt: skip
    ended, away = rows["ends"], rows["away"]
    assert (ended.state, ended.lasted_s, ended.calls, ended.app) == ("ended", 4.0, 1, "shop")
    assert (ended.split.waiting_s, ended.split.answering_s, ended.split.elsewhere_s) == (1, 2, 1)
    assert (away.lasted_s, away.split.elsewhere_s) == (13.0, 11.0)
    followed.call("e", "away", 20, 21)
    assert followed.find(part="away").workflows[0].doing == "runs"


def test_one_that_fell_silent_is_said_to_have(followed):
    followed.orchestrator.expire(2_000 * SECOND)
    assert followed.found(state="silent") == ["away"]
    assert followed.found(state="open") == ["waits"]  # a call that takes long is no silence


def test_pages_are_of_one_order(monkeypatch):
    monkeypatch.setattr(module, "WORKFLOWS_PAGE", 10)
    followed = Followed()
    for n in range(25):
        followed.call(str(n), f"w{n}", n)
    pages = [followed.find(offset) for offset in (0, 10, 20, 30)]
    assert [(page.total, page.remembered) for page in pages] == [(25, 25)] * 4
    assert [each.id for page in pages for each in page.workflows] == [f"w{n}" for n in range(25)]


def test_one_is_explained_call_by_call(followed, monkeypatch):
    monkeypatch.setattr(module, "CALLS_PAGE", 1)
    followed.call("e", "away", 12, 14, 15, app="blog", agent="next")
    told = explain_workflow(followed.page.snapshot("default", "away"), 1)
    assert (told.workflow.calls_total, [each.id for each in told.workflow.calls]) == (2, ["e"])
    assert told.explained == {
        "e": [
            "waited 2.000 s, then ran on i for 1.000 s, 10 + 5 tokens",
            "its turn: first by policy; 0 others stayed waiting",
        ]
    }
    assert told.split.waiting_s == 1 + 2


def test_what_is_not_known_here_is_said(followed):
    with pytest.raises(WorkflowNotFound):
        followed.page.snapshot("acme", "ends")
