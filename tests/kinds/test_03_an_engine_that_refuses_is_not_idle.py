"""Kind 3: an engine that refuses is not an idle engine."""

import asyncio
from random import Random

import pytest

from tests.kinds.table import CHAT, MESSAGES, RERANK, body, says, whole

CALLS = 60
ROWS = [
    *((CHAT, status, 1.0) for status in (401, 402, 403, 408, 429, 500, 502, 503, 504, 529)),
    *((route, status, 1.0) for route in (MESSAGES, RERANK) for status in (429, 503)),
    *((CHAT, status, 0.1) for status in (429, 500, 503)),
]


@pytest.mark.parametrize(("route", "status", "share"), ROWS)
async def test_calls_go_elsewhere_and_the_engine_gets_less(kairos, engines, route, status, share):
    one, two = await engines(), await engines()
    served = await kairos(one.url, two.url)
    dice, refuses = Random(7), says(status)

    async def answer(request):
        return await (refuses(request) if dice.random() < share else whole(request))

    one.answer, two.answer = answer, whole
    for _ in range(CALLS // 5):
        asked = (served.ask("POST", route, json=body(route)) for _ in range(5))
        assert {each.status for each in await asyncio.gather(*asked)} == {200}
    if share == 1:
        assert len(one.calls) < CALLS / 3


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_one_that_has_no_such_route_keeps_its_other_calls(kairos, engines, status):
    one, two = await engines(), await engines()
    served = await kairos(one.url, two.url)
    lacks = says(status)

    async def answer(request):
        return await (lacks(request) if request.path == RERANK else whole(request))

    one.answer, two.answer = answer, whole
    for _ in range(9):
        assert (await served.ask("POST", RERANK, json=body(RERANK))).status == 200
    assert not served.balancer.faults.circuits


@pytest.mark.parametrize("status", [401, 403])
async def test_where_all_refuse_kaiross_key_the_client_is_not_asked_for_another(
    kairos, engines, status
):
    one, two = await engines(), await engines()
    served = await kairos(one.url, two.url)
    one.answer = two.answer = says(status)
    answer = await served.ask("POST", CHAT, json=body(CHAT))
    assert (answer.status, answer.error()["code"]) == (502, "engine_refuses_key")
    assert "api_key_env" in answer.error()["message"]
