"""The operators' page, as what serves it answers."""

import asyncio
import re
from importlib.resources import files

import aiohttp
import msgspec
import pytest

from kairos.gateway import NowView
from kairos.gateway.server import http
from tests.e2e.client import LIMIT_S
from tests.e2e.served import serving

STATIC = files("kairos.gateway.page").joinpath("static")


@pytest.fixture
async def ask():
    """`await ask(URL, path)`: status, headers and body."""
    async with aiohttp.ClientSession() as session:

        async def ask(served, path):
            async with session.get(served.service.admin_url + path) as response:
                return response.status, response.headers, await response.read()

        yield ask


async def test_every_file_that_a_page_names_is_there_and_of_its_kind(served, ask):
    pages = [each for each in STATIC.iterdir() if each.name.endswith(".html")]
    names = {
        name for page in pages for name in re.findall(r"/ui/static/([^\"]+)", page.read_text())
    }
    for module in [each for each in STATIC.iterdir() if each.name.endswith(".js")]:
        names |= set(re.findall(r'from "\./([^"]+)"', module.read_text()))
    assert names == {each.name for each in STATIC.iterdir()} - {page.name for page in pages}
    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    for name in names:
        status, headers, body = await ask(served, f"/ui/static/{name}")
        assert (status, body) == (200, STATIC.joinpath(name).read_bytes())
        assert headers["content-type"].partition(";")[0] == kinds[name.rpartition(".")[2]]


def test_no_script_of_the_page_reads_text_as_html_or_code():
    for module in [each for each in STATIC.iterdir() if each.name.endswith(".js")]:
        made = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|srcdoc",
            module.read_text(),
        )
        assert made == [], module.name


async def test_no_other_file_is_served(served, ask):
    for name in (
        "nothing.js",
        "..%2fpages.py",
        "%2e%2e/pages.py",
        "__init__.py",
        "%2fetc%2fpasswd",
    ):
        assert (await ask(served, f"/ui/static/{name}"))[0] == 404


@pytest.mark.parametrize("path", ["/ui", "/ui/static/now.js", "/ui/data/now", "/ui/data/queue"])
async def test_the_browser_is_told_to_run_and_to_ask_nothing_but_what_is_served_here(
    kairos, engine, ask, path
):
    status, headers, _ = await ask(await kairos(engine.url), path)
    assert status == 200
    policy = dict(
        each.strip().split(" ", 1) for each in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert {policy[each] for each in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


async def test_a_page_of_the_queue_that_is_none_is_refused(served, ask):
    assert (await ask(served, "/ui/data/queue?offset=50"))[0] == 200
    for offset in ("-1", "x", "1" * 12):
        assert (await ask(served, f"/ui/data/queue?offset={offset}"))[0] == 400


async def test_it_is_asked_by_known_names_alone_and_not_where_clients_ask(served):
    async with aiohttp.ClientSession() as session:
        url = served.service.admin_url + "/ui"
        async with session.get(url, headers={"Host": "a.page.example"}) as response:
            assert response.status == 421
    assert (await served.ask("GET", "/ui")).status == 404


async def test_what_goes_on_comes_as_events_and_they_end_with_the_service(engine, monkeypatch):
    monkeypatch.setattr(http, "GRACE_S", 3_600)
    seen = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S)) as session:
        async with serving(engine.url) as served:
            response = await session.get(served.service.admin_url + "/ui/live")
            assert response.content_type == "text/event-stream"
            async for line in response.content:
                if line.startswith(b"data: "):
                    seen.append(msgspec.json.decode(line.removeprefix(b"data: "), type=NowView))
                if len(seen) == 2:
                    break
        # It stopped at once, though the page is open still; nobody waits for it to close.
        async with asyncio.timeout(LIMIT_S):
            assert b"data" not in await response.read()
    assert seen[0].at < seen[1].at
    assert [each.id for each in seen[1].instances] == [engine.url.removeprefix("http://")]
