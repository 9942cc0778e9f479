"""A web page of another origin that calls Kairos, in a real browser."""

from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tests.e2e.test_http_clients import CALLS, CHAT, STREAM, TOKENIZE, UPLOAD, echo, right
from tests.support.browser import browsing

pytestmark = pytest.mark.browser

ASK = """async ([url, kind, text]) => {
  const headers = {"Content-Type": kind, "Authorization": "Bearer none", "X-Kairos-Agent": "page"};
  try {
    const body = text === null ? new Uint8Array(100_000) : text;
    const answer = await fetch(url, {method: "POST", headers, body});
    return [answer.status, answer.headers.get("x-request-id") !== null, await answer.text()];
  } catch (error) {
    return [0, false, String(error)];
  }
}"""


@asynccontextmanager
async def page_served():
    """Yield the URL of an empty page, whose origin is not Kairos's."""
    app = web.Application()

    async def page(_):
        return web.Response(text="<!doctype html><title>page</title>", content_type="text/html")

    app.add_routes([web.get("/", page)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "not named"])
async def test_a_page_makes_its_calls_only_where_its_origin_is_named(kairos, engine, is_named):
    engine.answer = echo
    async with page_served() as origin, browsing() as visit:
        served = await kairos(engine.url, cors_origins=(origin,) if is_named else ())
        visited = await visit(origin)
        for call in (CHAT, STREAM, TOKENIZE, UPLOAD):
            path, kind, body = CALLS[call]
            text = None if call == UPLOAD else body.decode()
            status, has_id, said = await visited.page.evaluate(ASK, [served.url + path, kind, text])
            assert status == (200 if is_named else 0), said
            assert has_id == is_named
            if is_named and call == STREAM:
                assert said.encode() == right(call)
        visited.errors.clear()  # what the browser says of pages that may not ask
        visited.foreign.clear()
    assert len(engine.calls) == (4 if is_named else 0)
