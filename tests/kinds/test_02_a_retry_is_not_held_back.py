"""Kind 2: a retry is never held back while a healthy engine is idle."""

import asyncio

import pytest

from tests.kinds.table import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    NEVER_S,
    POOLING,
    RERANK,
    RESPONSES,
    SPEECH,
    body,
    drops,
    says,
    talks_no_http,
    whole,
)

FAULTS = {
    "stopped": None,
    "drops the connection": drops,
    "no HTTP": talks_no_http,
    **{f"answers {status}": says(status) for status in (401, 404, 429, 500, 502, 503, 529)},
}
ROUTES = (CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, MESSAGES, RERANK, POOLING, SPEECH)
ROWS = [(route, fault) for route in (RERANK, CHAT) for fault in FAULTS]
ROWS += [(route, "stopped") for route in ROUTES if route not in (RERANK, CHAT)]


@pytest.mark.parametrize(("route", "fault"), ROWS)
async def test_the_same_body_is_answered_by_the_other_engine_again_and_again(
    kairos, engines, route, fault
):
    one, two = await engines(), await engines()
    served = await kairos(one.url, two.url, suspicion_s=NEVER_S)
    two.answer = whole
    one.answer = FAULTS[fault] or whole
    if FAULTS[fault] is None:
        await one.stop()
    for _ in range(4):
        assert (await served.ask("POST", route, json=body(route))).status == 200
    await served.settled()


@pytest.mark.parametrize("alone", [True, False], ids=["one call", "twenty calls at once"])
async def test_what_an_engine_had_when_it_died_is_answered_by_the_other(kairos, engines, alone):
    one, two = await engines(), await engines()
    # One alone is suspected of the death, and waits for an instance by itself; of many none is,
    # unless a busy machine hears of one of them long before the others.
    served = await kairos(one.url, two.url, max_num_seqs=64, suspicion_s=1 if alone else 5)
    one.answer, two.answer = one.when_released, whole
    asked = [
        asyncio.create_task(served.ask("POST", CHAT, json=body(CHAT, f"call {number}")))
        for number in range(1 if alone else 40)
    ]
    await one.until(lambda: len(one.calls) + len(two.calls) >= len(asked))
    await one.stop()
    assert {(await each).status for each in asked} == {200}
