"""Kind 4: a timeout condemns no engine."""

import asyncio

import pytest

from kairos.core import Bounced, Failed
from tests.kinds.table import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RERANK,
    body,
    never,
    never_after_the_head,
    whole,
)

WHOLE, STREAM = (False, "answer_s"), (True, "stall_s")
ROWS = [
    *((route, *WHOLE, never) for route in (CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RERANK)),
    *((route, *STREAM, never) for route in (CHAT, COMPLETIONS, MESSAGES)),
    *((CHAT, *how, never_after_the_head) for how in (WHOLE, STREAM)),
]
LONGER = [
    (stream, header, value)
    for stream in (True, False)
    for header, value in (("x-kairos-deadline-ms", "30000"), ("x-stainless-read-timeout", "30"))
]


@pytest.mark.parametrize(("route", "stream", "setting", "silence"), ROWS)
async def test_a_call_that_is_cut_is_made_once_and_says_which_setting_cut_it(
    kairos, engines, route, stream, setting, silence
):
    one, two = await engines(), await engines()
    served = await kairos(one.url, two.url, stall_s=1, answer_s=1)
    one.answer = two.answer = silence
    answer = await served.ask("POST", route, json=body(route, stream=stream))

    assert (answer.status, answer.error()["code"]) == (504, "answer_timeout")
    assert f"within 1 s ({setting})" in answer.error()["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert len(one.calls + two.calls) == 1
    assert served.facts.all(Bounced) == []
    assert [each.by_instance for each in served.facts.all(Failed)] == [False]
    assert not served.balancer.faults.circuits


@pytest.mark.parametrize(("stream", "header", "value"), LONGER)
@pytest.mark.parametrize("longest_s", [60, 1], ids=["as allowed", "not beyond what is allowed"])
async def test_a_clients_own_longer_timeout_extends_it(
    kairos, engine, stream, header, value, longest_s
):
    served = await kairos(engine.url, stall_s=1, answer_s=1, longest_answer_s=longest_s)
    over = asyncio.Event()

    async def late(request):
        await over.wait()
        return await whole(request)

    engine.answer = late
    asking = served.chat(headers={header: value}, stream=stream)
    asked = asyncio.create_task(asking)
    await engine.called(1)
    assert (await served.chat()).error()["code"] == "answer_timeout"  # it began later
    over.set()
    assert (await asked).status == (200 if longest_s > 1 else 504)
