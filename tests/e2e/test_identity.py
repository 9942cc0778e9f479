"""Who makes a call, and whether they may."""

import pytest
from msgspec.structs import replace

from kairos.core import Arrived, WorkflowEnded
from kairos.gateway import Gateway
from tests.e2e.batch_files import key

CHAT = "/v1/chat/completions"


async def test_a_request_says_who_makes_it(served):
    await served.chat(
        headers={
            "X-Kairos-Workflow-Id": "w-1",
            "X-Kairos-App": "qa",
            "X-Kairos-Agent": "writer",
            "X-Kairos-Upstream": "router",
            "X-Kairos-Started-At": "1700000000000000",
            "X-Kairos-Parent-Id": "req-1,req-2",
            "X-Kairos-Attempt": "3",
        }
    )
    said = (await served.facts.seen(Arrived)).request

    assert (said.workflow_id, said.app, said.agent, said.upstream) == (
        "w-1", "qa", "writer", "router",
    )  # fmt: skip
    assert (said.workflow_started_at, said.tenant) == (1_700_000_000_000_000, "default")
    assert (said.parent_ids, said.attempt) == (("req-1", "req-2"), 3)
    assert said.model == "tiny"


async def test_requests_that_say_nothing_are_workflows_of_their_own(served):
    await served.chat()
    await served.chat()
    first, second = (fact.request for fact in served.facts.all(Arrived))

    assert (first.workflow_id, second.workflow_id) == (first.id, second.id)
    assert (first.app, first.agent, first.upstream) == (None, None, None)
    assert first.workflow_started_at == first.arrived_at


async def test_a_base_url_names_workflow_app_and_agent(kairos, engine, monkeypatch):
    monkeypatch.setattr(Gateway, "__call__", None)  # such a call has no task of its own either
    served = await kairos(engine.url)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
    for base in ("/wf/w-1/agent/writer", "/app/qa/agent/router", "/agent/a/app/b/wf/c"):
        assert (await served.ask("POST", f"{base}{CHAT}", json=body)).status == 200
    assert (await served.ask("GET", "/app/qa/v1/models")).status == 200

    said = [fact.request for fact in served.facts.all(Arrived)]
    assert [(each.workflow_id, each.app, each.agent) for each in said] == [
        ("w-1", None, "writer"),
        (said[1].id, "qa", "router"),
        ("c", "b", "a"),
    ]
    assert {call.path for call in engine.calls} == {CHAT}


async def test_a_base_url_names_them_for_rarer_routes_too(served, engine):
    assert (await served.ask("POST", "/app/qa/score", json={"prompt": "a"})).status == 200

    assert [fact.request.app for fact in served.facts.all(Arrived)] == ["qa"]
    assert [call.path for call in engine.calls] == ["/score"]


@pytest.mark.parametrize(
    "base",
    ["/wf", "/wf/", "/wf/a/wf/b", "/wf//agent/x", "/wf/a%20b", "/wf/%61", "/agent/-x", "/team/a"],
)
async def test_a_base_url_that_names_nothing_is_not_served(served, base):
    wire = await served.connect()

    await wire.post(f"{base}{CHAT}", {})

    assert (await wire.answer()).status == 404


async def test_a_final_session_request_ends_the_workflow(served):
    await served.chat(headers={"X-Dynamo-Session-ID": "s-1"})
    assert served.facts.all(WorkflowEnded) == []

    await served.chat(headers={"X-Dynamo-Session-ID": "s-1", "X-Dynamo-Session-Final": "true"})

    assert (await served.facts.seen(WorkflowEnded)).workflow_id == "s-1"


KEYS = key("acme"), key("bell")
ROUTES = [
    ("POST", CHAT),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/embeddings"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("POST", "/v1/rerank"),
    ("GET", "/v1/files"),
    ("POST", "/tokenize"),
]


async def test_without_a_known_key_nothing_of_v1_is_served(kairos, engine):
    served = await kairos(engine.url, key=KEYS)
    for sent in (None, "Bearer wrong", "Bearer ", "Basic acme", "acme", "Bearer"):
        headers = {} if sent is None else {"Authorization": sent}
        for method, path in ROUTES:
            answer = await served.ask(method, path, headers=headers)
            assert (answer.status, answer.error()["code"]) == (401, "invalid_api_key"), (sent, path)

    assert engine.calls == []
    assert served.facts.all(Arrived) == []


async def test_the_class_of_service_is_the_headers_within_what_the_key_may_ask_for(kairos, engine):
    [acme, bell] = KEYS
    acme = replace(acme, service_classes=("batch", "standard"))
    served = await kairos(engine.url, key=(acme, bell))

    async def ask(key, name=None):
        named = {} if name is None else {"X-Kairos-Class": name}
        return await served.chat(headers={"Authorization": f"Bearer {key}"} | named)

    for tenant, name in (("acme", None), ("acme", "standard"), ("bell", None), ("bell", "batch")):
        assert (await ask(tenant, name)).status == 200
    said = [fact.request.service_class for fact in served.facts.all(Arrived)]
    assert said == ["batch", "standard", "standard", "batch"]
    (await ask("acme", "interactive")).is_refused(403, "class_not_allowed")
    (await ask("bell", "urgent")).is_refused(400, "invalid_request")
