"""Who makes a call, and whether they may."""

from hashlib import sha256

from kairos.config import KeySettings
from kairos.events import Arrived

CHAT = "/v1/chat/completions"


async def test_a_request_says_who_makes_it(kairos, engine):
    served = await kairos(engine.url)
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


async def test_tracing_headers_say_who_makes_a_request_too(kairos, engine):
    served = await kairos(engine.url)
    trace = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
    baggage = {"baggage": "kairos.app=rg;x=y, gen_ai.agent.name=reader, kairos.workflow_id=w%2D7"}
    await served.chat(headers=trace)
    await served.chat(headers=trace | baggage)
    await served.chat(headers=trace | baggage | {"X-Kairos-Workflow-Id": "w-9"})
    traced, carried, declared = (fact.request for fact in served.facts.all(Arrived))

    assert traced.workflow_id == "a" * 32
    assert (carried.workflow_id, carried.app, carried.agent) == ("w-7", "rg", "reader")
    assert (declared.workflow_id, declared.agent) == ("w-9", "reader")


async def test_requests_that_say_nothing_are_workflows_of_their_own(kairos, engine):
    served = await kairos(engine.url)
    await served.chat()
    await served.chat()
    first, second = (fact.request for fact in served.facts.all(Arrived))

    assert (first.workflow_id, second.workflow_id) == (first.id, second.id)
    assert (first.app, first.agent, first.upstream) == (None, None, None)
    assert first.workflow_started_at == first.arrived_at


KEYS = tuple(
    KeySettings(sha256=sha256(name.encode()).hexdigest(), tenant=name) for name in ("acme", "bell")
)


async def test_two_tenants_with_the_same_workflow_id_stay_apart(kairos, engine):
    served = await kairos(engine.url, key=KEYS)
    for key in ("acme", "bell"):
        await served.chat(
            headers={"Authorization": f"Bearer {key}", "X-Kairos-Workflow-Id": "same"}
        )

    said = [fact.request for fact in served.facts.all(Arrived)]
    assert [(each.tenant, each.workflow_id) for each in said] == [
        ("acme", "same"),
        ("bell", "same"),
    ]


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
