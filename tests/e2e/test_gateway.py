"""Headers, request ids, the queue, and what never reaches an engine."""

import asyncio
import json
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from kairos.core import Arrived
from tests.e2e.batch_files import key

CHAT = "/v1/chat/completions"


async def test_only_listed_headers_of_the_client_reach_the_engine(served, engine):
    passed = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "User-Agent": "an-agent/1.0",
        "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01",
        "tracestate": "a=b",
        "baggage": "c=d",
    }
    kept = {
        "Authorization": "Bearer a-client's-secret",
        "X-Vllm-Priority": "-100",
        "Cookie": "session=1",
        "X-Forwarded-For": "10.0.0.1",
        "X-Kairos-Agent": "writer",
        "X-Data-Parallel-Rank": "0",
        "Accept-Encoding": "gzip",
    }
    await served.chat(headers=passed | kept)

    reached = engine.calls[0].headers
    ours = {"host", "content-length", "x-request-id"}
    assert reached.keys() - ours == {name.lower() for name in passed}
    assert all(reached[name.lower()] == value for name, value in passed.items())
    assert reached["host"] == urlsplit(engine.url).netloc


async def test_the_engines_key_reaches_the_engine_and_nobody_else(
    kairos, engine, monkeypatch, caplog
):
    secret = "an-engine's-secret"
    monkeypatch.setenv("ENGINE_KEY", secret)
    caplog.set_level("DEBUG")
    served = await kairos(engine.url, api_key_env="ENGINE_KEY")
    async with asyncio.timeout(60):
        answers = [
            await served.chat(headers={"Authorization": "Bearer a-client's"}),
            await served.chat(model="huge"),
            await served.ask("GET", "/metrics"),
        ]
        engine.answer = engine.stream(then=lambda transport: transport.abort())
        engine.release()
        answers.append(await served.chat(stream=True))
        await engine.stop()
        answers.append(await served.chat())
        async with served._session.get(served.service.admin_url + "/admin/status") as status:
            said = await status.text()

    assert [answer.status for answer in answers] == [200, 404, 200, 503, 503]
    assert engine.calls[0].headers["authorization"] == f"Bearer {secret}"
    assert {probe.headers["authorization"] for probe in engine.probes} == {f"Bearer {secret}"}
    said += caplog.text + repr(served.facts.records)
    said += "".join(f"{answer.headers}{answer.body}" for answer in answers)
    assert secret not in said


ANSWERS = [
    ("POST", CHAT, 200),
    ("PUT", CHAT, 405),
    ("GET", CHAT, 405),
    ("POST", "/v1/embeddings", 400),
    ("GET", "/v1/models", 200),
    ("GET", "/v1/models/tiny", 200),
    ("GET", "/v1/models/huge", 404),
    ("GET", "/health", 200),
    ("POST", "/health", 405),
    ("GET", "/metrics", 200),
    ("GET", "/nothing", 404),
    ("POST", "/v1/..", 404),
]


async def test_every_answer_carries_a_request_id(served):
    wire = await served.connect()
    ids = set()
    for method, path, status in ANSWERS:
        await wire.post(path, {"messages": []} if status == 200 else b"", method=method)
        answer = await wire.answer()
        assert answer.status == status, (method, path)
        assert answer.headers["x-request-id"].startswith("req-")
        ids.add(answer.headers["x-request-id"])

    assert len(ids) == len(ANSWERS)


async def test_every_answer_has_the_id_that_its_caller_gave_and_errors_are_counted(served):
    wire = await served.connect()
    for number, (method, path, status) in enumerate(ANSWERS):
        named = f"X-Request-Id: mine-{number}"
        await wire.post(path, {"messages": []} if status == 200 else b"", named, method=method)
        assert (await wire.answer()).headers["x-request-id"] == f"mine-{number}", (method, path)

    named = {"X-Request-Id": "mine-too", "Host": "elsewhere"}
    operators = served.service.admin_url + "/admin/status"
    async with served._session.get(operators, headers=named) as refused_one:
        assert (refused_one.status, refused_one.headers["x-request-id"]) == (421, "mine-too")
    metrics = (await served.ask("GET", "/metrics")).body.decode()
    counts = (line for line in metrics.splitlines() if line.startswith("kairos_errors_total{"))
    refused = [path for _, path, status in ANSWERS if status >= 400 and path != "/health"]
    assert sum(float(line.rpartition(" ")[2]) for line in counts) == len(refused)


ALLOWED = {
    CHAT: "POST, OPTIONS",
    "/v1/embeddings": "POST, OPTIONS",
    "/v1/models": "GET, HEAD, OPTIONS",
    "/v1/rerank": "DELETE, GET, HEAD, OPTIONS, POST",
    "/v1/workflows/one": "DELETE, GET, HEAD, OPTIONS",
    "/v1/plans/one": "OPTIONS, PUT",
    "/health": "GET, HEAD, OPTIONS",
}


@pytest.mark.parametrize("path", ALLOWED)
async def test_a_method_that_is_not_allowed_is_told_which_are(served, path):
    wire = await served.post_raw(path, b"", method="PATCH")
    answer = await wire.answer()
    assert (answer.status, answer.headers["allow"]) == (405, ALLOWED[path])


async def test_a_clients_own_request_id_is_kept_and_passed_on(served, engine):
    answer = await served.chat(headers={"X-Request-Id": "mine-1"})
    refused = await served.chat(headers={"X-Request-Id": "mine-2"}, model="huge")

    assert answer.headers["x-request-id"] == "mine-1"
    assert refused.headers["x-request-id"] == "mine-2"
    assert engine.calls[0].headers["x-request-id"] == "mine-1"
    assert (await served.facts.seen(Arrived)).request.id == "mine-1"


async def test_a_request_id_that_is_none_is_replaced(served):
    wire = await served.connect()
    for wanted in ("", "a b", "-a", "x" * 129, "ä"):
        await wire.post(CHAT, {"messages": []}, f"X-Request-Id: {wanted}")
        assert (await wire.answer()).headers["x-request-id"].startswith("req-"), wanted


async def test_a_request_id_that_is_in_flight_already_is_replaced(served, engine):
    engine.answer = engine.when_released
    asking = [asyncio.create_task(served.chat(headers={"X-Request-Id": "same"})) for _ in range(3)]
    await engine.called(3)
    engine.release(3)
    ids = {(await each).headers["x-request-id"] for each in asking}
    engine.release()
    again = await served.chat(headers={"X-Request-Id": "same"})

    assert len(ids) == 3
    assert "same" in ids
    assert {call.headers["x-request-id"] for call in engine.calls[:3]} == ids
    assert again.headers["x-request-id"] == "same"


async def test_a_call_that_counts_its_attempts_waits_for_the_one_of_its_name_to_end(served, engine):
    engine.answer = engine.when_released
    first = asyncio.create_task(served.chat(headers={"X-Request-Id": "same"}))
    await engine.called(1)
    again = {"X-Request-Id": "same", "X-Kairos-Attempt": "2"}
    (await served.chat(headers=again)).is_to_be_retried("request_in_flight")
    engine.release(2)
    await first
    assert (await served.chat(headers=again)).headers["x-request-id"] == "same"


async def test_requests_of_one_id_whose_bodies_arrive_together_are_told_apart(served, engine):
    engine.answer = engine.when_released
    body = json.dumps({"messages": []})
    wires = [await served.connect() for _ in range(2)]
    for wire in wires:  # both are being read before either is in flight
        await wire.send(
            f"POST {CHAT} HTTP/1.1\r\nHost: kairos\r\nX-Request-Id: same\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body[:5]}".encode()
        )
    await served.ask("GET", "/health")  # a full turn: both heads have been read
    for wire in wires:
        await wire.send(body[5:].encode())
    await engine.called(2)
    engine.release(2)
    ids = [(await wire.answer()).headers["x-request-id"] for wire in wires]

    assert "same" in ids
    assert len(set(ids)) == 2


async def test_calls_wait_their_turn_and_are_served_in_the_order_in_which_they_came(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=1, policy="fcfs")
    engine.answer = engine.when_released
    routes = [CHAT, "/pooling", "/v1/rerank", CHAT, "/v1/embeddings", "/v1/items?after=a%20b"]
    asking = []
    for number, path in enumerate(routes, start=1):
        body = {"json": {"model": "tiny", "messages": [], "n": number}}
        asking.append(asyncio.create_task(served.ask("POST", path, **body)))
        await served.facts.seen(Arrived, number)
    for number in range(1, len(routes) + 1):
        await engine.called(number)
        assert len(engine.calls) == number
        assert served.balancer.waiting == len(routes) - number
        engine.release()
    answers = [await each for each in asking]

    assert [call.path for call in engine.calls] == routes
    assert [answer.json()["number"] for answer in answers] == [1, 2, 3, 4, 5, 6]


async def test_a_body_that_is_not_json_passes_on_other_routes(served, engine):
    form = b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n\xff\x00\r\n--x--\r\n'
    kind = "multipart/form-data; boundary=x"
    answer = await served.ask(
        "POST", "/v1/audio/transcriptions", data=form, headers={"Content-Type": kind}
    )

    assert answer.status == 200
    assert engine.calls[0].body == form
    assert engine.calls[0].headers["content-type"] == kind


CLOSED = [
    "/pause", "/resume", "/sleep", "/wake_up", "/collective_rpc", "/reset_prefix_cache",
    "/props", "/slots", "/slots/0?action=erase", "/lora-adapters", "/server_info", "/v2/models",
    "/get_server_info",
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/load_lora_adapter/", "/v1", "/v1/",
    "/v1/load_lora_adapter?x=1", "/v1/load_lora_adapter/x", "//v1/load_lora_adapter",
    "/v1/../pause", "/v1/./../pause", "/v1/%2e%2e/pause", "/v1/..%2fpause", "/v1/a/../../pause",
    "/%70ause", "//pause", "/v1//pause", "/v1/;/../pause", "/tokenize/../pause", "/tokenize/",
    "/v1/load%5flora_adapter", "/v1/..;/pause", "/v1/.../pause", "/v1/\\..\\pause",
    "http://localhost/pause", "http://localhost/v1/../pause",
    "/v1/models/load", "/v1/models/unload",
    "/v1/%252e%252e/pause", "/v1/a%00b", "/v1/a%2f..%2f..%2fpause", "/admin/status",
    "/v1/fil%65s", "/token%69ze",
]  # fmt: skip


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_what_steers_the_engine_never_reaches_it(served, engine, method):
    for path in CLOSED:
        wire = await served.post_raw(path, b"{}", "Content-Type: application/json", method=method)
        answer = await wire.answer()
        assert answer.status in (404, 405), path
        answer.error()

    assert engine.calls == []
    assert served.facts.all(Arrived) == []


async def test_operators_see_what_runs_where_and_why_an_instance_is_not_used(
    kairos, engine, unused_port
):
    served = await kairos(engine.url, f"http://127.0.0.1:{unused_port}", joins=1, max_num_seqs=3)
    engine.answer = engine.when_released
    asking = asyncio.create_task(served.chat())
    await engine.called()
    async with served._session.get(served.service.admin_url + "/admin/status") as response:
        status = await response.json()
    engine.release()
    await asking

    (instance,) = status["instances"].values()
    assert (instance["running"], instance["max_num_seqs"]) == (1, 3)
    assert instance["kv_booked_tokens"] > 0
    assert list(status["not_in_use"]) == [f"127.0.0.1:{unused_port}"]


async def test_metrics_count_calls_by_how_they_ended(served, engine):
    await served.chat()
    await served.chat(model="huge")
    await engine.stop()
    await served.chat()
    metrics = (await served.ask("GET", "/metrics")).body.decode()

    assert 'kairos_calls_total{outcome="finished"} 1.0' in metrics
    assert 'kairos_calls_total{outcome="failed"} 1.0' in metrics
    assert "kairos_requests_waiting 0.0" in metrics


async def test_operators_alone_see_what_each_tenant_had(served):
    await served.chat(headers={"X-Kairos-App": "qa"})
    await served.settled()
    mine = b'kairos_tenant_calls_total{app="qa",outcome="finished",tenant="default"} 1.0\n'
    theirs = (await served.ask("GET", "/metrics")).body
    ours = (await served._ask("GET", f"{served.service.admin_url}/metrics")).body
    assert mine in ours
    assert b"kairos_tenant" not in theirs
    assert theirs.splitlines()[0] in ours


async def test_models_are_listed_as_their_engines_have_them(kairos, engines):
    one, two = await engines(), await engines()

    def says(*cards):
        async def probe(request):
            if request.raw_path != "/v1/models":
                return web.Response()
            return web.json_response({"data": list(cards)})

        return probe

    one.probe = says({"id": "tiny", "max_model_len": 4096}, {"id": "ad", "parent": "tiny"})
    two.probe = says({"id": "tiny", "max_model_len": 2048})
    served = await kairos(one.url, two.url)

    listed = (await served.ask("GET", "/v1/models")).json()["data"]
    assert [(each["id"], each.get("max_model_len"), each.get("parent")) for each in listed] == [
        ("ad", None, "tiny"),
        ("tiny", 2048, None),
    ]
    assert (await served.ask("GET", "/v1/models/tiny")).json()["max_model_len"] == 2048


async def test_who_asks_for_models_before_the_first_look_waits_for_it(kairos, engine):
    looked, answered = asyncio.Event(), engine.probe

    async def probe(request):
        await looked.wait()
        return await answered(request)

    engine.probe = probe
    served = await kairos(engine.url, joins=0)
    asked = asyncio.create_task(served.ask("GET", "/v1/models"))
    await engine.until(lambda: engine.probes)
    looked.set()
    assert [each["id"] for each in (await asked).json()["data"]] == ["tiny"]


async def test_what_needs_no_memory_is_found_where_it_is(kairos, engines):
    one, two = await engines(), await engines()

    async def has_none(_):
        return web.json_response({"error": {"message": "no such response"}}, status=404)

    one.answer = has_none
    served = await kairos(one.url, two.url)
    for _ in range(2):
        assert (await served.ask("GET", "/v1/responses/r")).status == 200
    await one.stop()
    assert (await served.ask("POST", "/tokenize", json={"model": "tiny"})).status == 200
    two.answer = has_none
    gone = await served.ask("GET", "/v1/responses/r")
    assert (gone.status, gone.json()["error"]["message"]) == (404, "no such response")
    assert (await served.ask("POST", "/tokenize", json={"model": "huge"})).status == 404


@pytest.mark.parametrize("counts", [False, True])
async def test_a_calls_id_is_its_tenants_own(kairos, engine, counts):
    """Another tenant neither learns that a call of that id is in flight, nor is held up by it."""
    served = await kairos(engine.url, key=(key("acme"), key("other")))
    engine.answer = engine.when_released

    def ask(tenant):
        named = {"X-Request-Id": "the-one", "Authorization": f"Bearer {tenant}"}
        return asyncio.create_task(
            served.chat(named | ({"X-Kairos-Attempt": "1"} if counts else {}))
        )

    first = ask("acme")
    await engine.called(1)
    second, again = ask("other"), ask("acme")
    if counts:
        assert (await again).status == 503
    await engine.called(2 if counts else 3)
    engine.release(3)
    answers = [await each for each in (first, second, *(() if counts else (again,)))]
    assert {each.status for each in answers} == {200}
    assert len({each.headers["x-request-id"] for each in answers}) == len(answers)
