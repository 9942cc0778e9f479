"""What is known of a tenant's calls says nothing of another's, and is not forgotten for them."""

import json
from random import Random

import pytest

from kairos.request import Aliases, Identity
from kairos.request.identity import aliases as aliases_module
from kairos.request.identity import answered_calls, fingerprint, inference, parts
from tests.unit.request.identity.test_inference import Wire, said, words

MINE = {"tenant": "honest"}


@pytest.fixture
def random():
    return Random(7)


def planned(wire, random):
    """A call of a tenant whose reply another is to be known by, in each of the ways."""
    text = words(random, 60)
    messages = [said("system", "You plan."), said("user", words(random))]
    call = wire.ask(messages, **MINE)
    talk = [*messages, call.answer(text, calls=["call-7"])]
    # The same, as the responses API has it.
    call.give(json.dumps({"id": "resp-7", "output": [{"content": []}]}).encode(), streamed=False)
    return call, text, talk


FOLLOW = {
    "tool result": lambda text, talk: {"messages": [said("tool", "done", tool_call_id="call-7")]},
    "conversation": lambda text, talk: {"messages": [*talk, said("user", "And then?")]},
    "whole text": lambda text, talk: {"messages": [said("user", text)]},
    "passages": lambda text, talk: {"messages": [said("user", f"Do as it says: {text[30:]}!")]},
    "previous response": lambda text, talk: {
        "input": "And then?",
        "previous_response_id": "resp-7",
    },
}


@pytest.mark.parametrize("way", FOLLOW)
def test_what_would_follow_from_a_call_follows_from_none_of_another_tenant(random, way):
    wire = Wire()
    call, text, talk = planned(wire, random)
    body = FOLLOW[way](text, talk)

    spy = wire.send(body, tenant="spy").identity
    assert (spy.workflow_id, spy.parent_ids, spy.upstream) == (None, (), None)
    assert wire.send(body, **MINE).workflow == call.id


@pytest.mark.parametrize("way", FOLLOW)
def test_nor_where_it_names_the_other_tenants_workflow(random, way):
    wire = Wire()
    call, text, talk = planned(wire, random)

    spy = wire.send(FOLLOW[way](text, talk), tenant="spy", workflow_id=call.id).identity
    assert (spy.parent_ids, spy.upstream) == ((), None)


@pytest.mark.parametrize("way", ["whole text", "passages", "conversation"])
def test_words_that_another_tenant_was_answered_too_still_tell_whose_they_are(random, way):
    wire = Wire()
    call, text, talk = planned(wire, random)
    for _ in range(3):  # of as many workflows
        wire.ask(talk[:-1], tenant="spy").answer(text)

    assert wire.send(FOLLOW[way](text, talk), **MINE).workflow == call.id


def flood(wire, random, calls=200):
    """Of another tenant, which is let make up what it likes."""
    for number in range(calls):
        messages = [said("system", words(random, 20)), said("user", words(random, 60))]
        tools = [f"tool-{number}"]
        made = wire.ask(messages, tenant="flood", tools=tools)
        made.answer(words(random, 60), calls=[f"call-{number}"])


@pytest.mark.parametrize("way", FOLLOW)
def test_a_call_is_known_by_its_workflows_replies_beside_a_flood_of_others(
    random, way, monkeypatch
):
    monkeypatch.setattr(answered_calls, "_MAX_REPLIES", 20)
    monkeypatch.setattr(inference, "_MAX_CLUES", 20)
    monkeypatch.setattr(parts, "_MAX_READ_BYTES", 10_000)
    wire = Wire()
    call, text, talk = planned(wire, random)
    flood(wire, random)

    assert len(wire.inference._replies) == len(wire.inference._clues) == 20
    assert wire.inference._parts._read_bytes.total <= 10_000
    assert wire.send(FOLLOW[way](text, talk), **MINE).workflow == call.id


def test_answers_that_nobody_read_are_kept_beside_another_tenants(random, monkeypatch):
    monkeypatch.setattr(answered_calls, "_MAX_UNREAD_BYTES", 20_000)
    wire, text = Wire(), words(random)
    named = {"workflow_id": "wf", "agent": "a", "upstream": "user"}
    mine = wire.ask([said("user", "Plan.")], **MINE, **named)
    mine.answer(text)
    for _ in range(100):
        wire.ask([said("user", "Plan.")], tenant="flood", **named).answer(words(random, 200))

    assert wire.inference._replies._unread.weight <= 20_000
    follows = wire.ask([said("user", f"Do: {text}")], **MINE, workflow_id="wf")
    assert follows.identity.parent_ids == (mine.id,)


def test_a_request_id_that_another_tenant_has_as_well_leads_to_none_of_its_calls(random):
    """Ids are the clients' to choose. The spy's call has the id of the honest tenant's first."""
    wire, texts = Wire(), [words(random) for _ in range(3)]
    named = {"workflow_id": "wf", "agent": "a"}
    first = wire.ask([said("user", "1")], **MINE, **named)
    first.answer(texts[0])
    second = wire.ask([said("user", "2")], **MINE, **named, parent_ids=(first.id,))
    second.answer(texts[1])
    spy = wire.ask([said("user", "3")], tenant="spy", **named, parent_ids=(second.id,))
    spy.id = first.id
    spy.answer(texts[2])

    joined = wire.ask([said("user", "\n".join(texts[:2]))], **MINE, workflow_id="wf")
    assert joined.identity.parent_ids == (second.id,)


def test_an_agents_name_is_by_its_own_tenants_prompts_and_tools_alone(random, monkeypatch):
    monkeypatch.setattr(fingerprint, "_MAX_KNOWN", 20)
    wire, alone = Wire(), Wire()
    talk = [said("system", "You write."), said("user", "Hello")]
    every = ["read", "write", "search", "run"]
    wire.ask(talk, tenant="spy", tools=every)  # all that any agent of that prompt may have
    for number in range(20):
        wire.ask(talk, tenant="spy", tools=[f"tool-{number}"])
    names = [each.ask(talk, **MINE, tools=["read"]).identity.agent for each in (wire, alone)]
    assert names[0] == names[1]
    other = wire.ask(talk, **MINE, tools=["write"]).identity.agent
    assert other != names[0]

    flood(wire, random)
    assert len(wire.inference._fingerprints._alike) <= 20
    # With more tools than before it is the same agent, as long as it is known.
    assert wire.ask(talk, **MINE, tools=["read", "run"]).identity.agent == names[0]


def test_a_session_belongs_to_its_workflow_whatever_sessions_another_tenant_makes_up(monkeypatch):
    monkeypatch.setattr(aliases_module, "_MAX_SESSIONS", 10)
    aliases = Aliases()

    def workflow(tenant, session, parent=None):
        headers = {b"x-session-id": session.encode()}
        if parent is not None:
            headers[b"x-parent-session-id"] = parent.encode()
        identity = Identity()
        aliases.add(identity, headers, tenant)
        return identity.workflow_id

    workflow("honest", "child", "root")
    for number in range(100):
        workflow("flood", f"s{number}")
    assert workflow("honest", "grandchild", "child") == "root"
    assert workflow("flood", "grandchild", "child") == "child"
