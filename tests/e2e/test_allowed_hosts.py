"""Calls of web pages while no key is asked for: refused by the host's name, and by the origin."""

import asyncio
import json
import socket
from urllib.parse import urlsplit

import pytest

from tests.e2e.batch_files import key
from tests.e2e.client import LIMIT_S

OWN = socket.gethostname()
KEY = key("right", "acme")

# What a browser says of a page, and what the page may: status, and code of the error.
ALLOWED, NO_NAME, FOREIGN = (200, None), (421, "unknown_host"), (403, "foreign_origin")
REQUESTS = [
    ({}, ALLOWED),
    ({"Host": "localhost"}, ALLOWED),
    ({"Host": "LOCALHOST.:8000"}, ALLOWED),
    ({"Host": "a.localhost:8000"}, ALLOWED),
    ({"Host": "10.1.2.3:8000"}, ALLOWED),
    ({"Host": "[::1]:8000"}, ALLOWED),
    ({"Host": OWN}, ALLOWED),
    ({"Host": f"{OWN.upper()}:8000"}, ALLOWED),
    ({"Host": "gateway:8000"}, ALLOWED),
    ({"Host": "Gateway.kairos.svc."}, ALLOWED),
    ({"Host": "evil.example"}, NO_NAME),
    ({"Host": "evil.example:8000", "Origin": "http://evil.example:8000"}, NO_NAME),
    ({"Host": "localhost.evil.example"}, NO_NAME),
    ({"Host": "127.0.0.1.evil.example"}, NO_NAME),
    ({"Host": "x.gateway"}, NO_NAME),
    ({"Host": "127.0.0.1:80@evil.example"}, NO_NAME),
    ({"Host": "localhost:8000/health?"}, NO_NAME),
    ({"Host": "[::1]/health?"}, NO_NAME),
    ({"Host": "2130706433"}, NO_NAME),
    ({"Host": "0x7f.1"}, NO_NAME),
    ({"Origin": "https://evil.example"}, FOREIGN),
    ({"Origin": "https://evil.example", "Content-Type": "text/plain"}, FOREIGN),
    ({"Origin": "null"}, FOREIGN),
    ({"Origin": "http://localhost:3000", "Host": "localhost:8000"}, FOREIGN),
    ({"Origin": "https://chat.example.evil.example"}, FOREIGN),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, FOREIGN),
    ({"Origin": "http://localhost:8000", "Host": "localhost:8000"}, ALLOWED),
    ({"Origin": "https://chat.example"}, ALLOWED),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, ALLOWED),
    ({"Sec-Fetch-Site": "none"}, ALLOWED),
]


def said(answer):
    if answer.status == 200:
        return 200, None
    return answer.status, answer.error()["code"]


async def test_a_call_needs_a_known_host_and_no_foreign_origin(kairos, engine):
    served = await kairos(
        engine.url,
        allowed_hosts=("gateway", "gateway.kairos.svc"),
        cors_origins=("https://chat.example",),
    )
    for headers, expected in REQUESTS:
        for method, path, body in (
            ("GET", "/v1/models", None),
            ("GET", "/v1/agents", None),
            ("GET", "/metrics", None),
        ):
            answer = await served.ask(method, path, headers=headers, data=body)
            assert said(answer) == expected, (path, headers)
    refused = [headers for headers, expected in REQUESTS if expected != ALLOWED]
    for headers in refused:
        assert (await served.chat(headers=headers)).status in (403, 421), headers
    assert not engine.calls


async def test_the_refusal_names_the_host_and_the_setting(served):
    message = (await served.ask("GET", "/v1/models", headers={"Host": "evil.example"})).error()
    assert "'evil.example'" in message["message"]
    assert "allowed_hosts" in message["message"]
    message = (await served.ask("GET", "/v1/models", headers={"Origin": "http://evil"})).error()
    assert "'http://evil'" in message["message"]
    assert "cors_origins" in message["message"]


@pytest.mark.parametrize(
    "given",
    [{"allowed_hosts": ("*",), "cors_origins": ("*",)}, {"key": (KEY,)}],
    ids=["all are allowed", "a key is asked for"],
)
async def test_any_name_and_page_may_ask_where_all_are_allowed_or_a_key_is_asked_for(
    kairos, engine, given
):
    served = await kairos(engine.url, **given)
    for headers, _ in REQUESTS:
        shown = headers | {"Authorization": "Bearer right"}
        assert (await served.ask("GET", "/v1/models", headers=shown)).status == 200, headers


async def test_names_of_callers_lead_to_operators_too_but_not_any_name(kairos, engine):
    served = await kairos(engine.url, allowed_hosts=("gateway", "*"))
    port = urlsplit(served.service.admin_url).port
    for host, status in (("gateway", 200), (f"{OWN}:{port}", 200), ("evil.example", 421)):
        answer = await served.operate("GET", "status", headers={"Host": host})
        assert answer.status == status, host


async def test_a_load_balancer_may_ask_for_health_by_any_name(served):
    for path, status in (("/health", 200), ("/health/", 421), ("/metrics", 421)):
        answer = await served.ask("GET", path, headers={"Host": "lb.example"})
        assert answer.status == status, path


async def test_refusals_are_counted_and_in_the_audit_log(kairos, engine, tmp_path):
    path = tmp_path / "audit.jsonl"
    served = await kairos(engine.url, audit_log=str(path))
    for _ in range(3):
        await served.ask("GET", "/v1/models", headers={"Host": "evil.example"})
        await served.ask("GET", "/v1/models", headers={"Origin": "https://evil.example"})
    await served.operate("GET", "status", headers={"Host": "evil.example"})
    figures = (await served.ask("GET", "/metrics")).body.decode()
    assert 'kairos_errors_total{code="unknown_host"} 3.0' in figures
    assert 'kairos_errors_total{code="foreign_origin"} 3.0' in figures
    async with asyncio.timeout(LIMIT_S):
        while len(written := path.read_text().splitlines()) < 3:
            await asyncio.sleep(0.01)
    lines = [json.loads(line) for line in written]
    assert [(each["port"], each["status"], each["code"], each["address"]) for each in lines] == [
        ("callers", 421, "unknown_host", "127.0.0.1"),
        ("callers", 403, "foreign_origin", "127.0.0.1"),
        ("operators", 421, "unknown_host", "127.0.0.1"),
    ]
