"""Kind 5: what the engine said reaches the client."""

import pytest

from tests.kinds.table import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RERANK, body, says, whole

ROWS = [
    *((route, 400) for route in (CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RERANK)),
    *((CHAT, status) for status in (404, 405, 409, 413, 415, 422, 429, 500, 501, 503, 529)),
]
NEVER = [
    "Set-Cookie",
    "Access-Control-Allow-Origin",
    "X-Kairos-Reason",
    "Keep-Alive",
    "Server",
    "X-Request-Id",
]
KEPT = ["Retry-After", "X-RateLimit-Remaining", "Request-Id", "X-Of-The-Engine"]


@pytest.mark.parametrize(("route", "status"), ROWS)
async def test_its_words_and_status_are_the_clients(kairos, engines, route, status):
    one, two = await engines(), await engines()
    served = await kairos(one.url, two.url)
    one.answer = two.answer = says(status, **dict.fromkeys(KEPT, "7"))
    for _ in range(3):
        answer = await served.ask("POST", route, json=body(route))
        assert (answer.status, answer.error()["message"]) == (status, "mine")
        assert {answer.headers[name] for name in KEPT} == {"7"}


@pytest.mark.parametrize("name", NEVER)
async def test_what_is_its_own_stays_there(kairos, engine, name):
    served = await kairos(engine.url)

    async def answer(request):
        told = await whole(request)
        told.headers[name] = "of the engine"
        return told

    engine.answer = answer
    told = await served.chat()
    assert told.status == 200
    assert "of the engine" not in told.headers.getall(name, [])
