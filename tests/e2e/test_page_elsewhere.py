"""The page of a process that follows workflows and decides nothing."""

import re
from contextlib import asynccontextmanager

import aiohttp
import pytest
from fastapi import FastAPI

from kairos.core import (
    SECOND,
    Arrived,
    Finished,
    Orchestrator,
    Record,
    Unavailable,
    WorkEstimates,
    WorkflowEnded,
)
from kairos.gateway import (
    HttpServer,
    access_of,
    add_follower_pages,
    answer_errors_as_openai_does,
    listening_socket,
    may_have_page,
    serving_ports,
    url_of,
)
from kairos.settings import Settings
from tests.e2e.test_roles import basic, keys
from tests.support.simulate import build


class Followed:
    """What `kairos orchestrate` follows, without its Kafka."""

    def __init__(self):
        self.known, self.estimates, self.is_standby = Orchestrator(), WorkEstimates(), False
        self.tell(1, Arrived(build.request("a", at=SECOND, workflow_id="w", agent="writer")))
        self.tell(2, Finished("a", 10, 5))
        self.tell(3, WorkflowEnded("default", "w"))

    def tell(self, at_s, event):
        self.known.observe(Record(at_s * SECOND, event))

    @property
    def orchestrator(self):
        if self.is_standby:
            raise Unavailable("this orchestrator is on standby")
        return self.known

    def now(self):
        return 10 * SECOND


@asynccontextmanager
async def followed(**given):
    app, follower = FastAPI(), Followed()

    @app.get("/v1/agents")
    async def agents():
        return {"of": "clients"}

    add_follower_pages(app, follower, access_of(Settings(**given)), (), None)
    answer_errors_as_openai_does(app)
    with listening_socket("127.0.0.1", 0) as sock:
        async with serving_ports({sock: HttpServer(app)}, []), aiohttp.ClientSession() as session:

            async def ask(path, **options):
                async with session.get(url_of(sock, has_tls=False) + path, **options) as response:
                    return response.status, await response.text()

            ask.url, ask.follower = url_of(sock, has_tls=False), follower
            yield ask


async def test_it_shows_workflows_and_agents_and_says_what_it_does_not_know():
    async with followed() as ask:
        status, page = await ask("/ui")
        assert status == 200
        assert "It does not know what waits" in page
        assert '"total":1,' in (await ask("/ui/data/workflows"))[1]
        assert '"agent":"writer"' in (await ask("/ui/data/workflow?tenant=default&id=w"))[1]
        assert (await ask("/ui/data/agents"))[0] == 200
        assert '"may_act":false' in (await ask("/ui/data/me"))[1]
        ask.follower.is_standby = True
        assert (await ask("/ui/data/workflows"))[0] == 503


async def test_the_page_asks_operators_for_keys_and_clients_are_asked_as_before():
    async with followed(key=keys("caller", "viewer")) as ask:
        for path in ("/ui", "/ui/static/dom.js", "/ui/data/workflows"):
            assert (await ask(path))[0] == 401
            assert (await ask(path, headers=basic("caller")))[0] == 403
            assert (await ask(path, headers=basic("viewer")))[0] == 200
        assert (await ask("/v1/agents"))[0] == 200
        assert (await ask("/ui", headers={"host": "evil.example"} | basic("viewer")))[0] == 421
        assert (await ask("/v1/agents", headers={"host": "kairos.internal"}))[0] == 200


@pytest.mark.parametrize(
    ("given", "may"),
    [
        ({}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "key": keys("caller")}, False),
        ({"host": "0.0.0.0", "key": keys("viewer")}, True),
    ],
)
def test_a_port_that_others_reach_has_a_page_only_where_operators_have_keys(given, may):
    assert may_have_page(Settings(**given)) is may


@pytest.mark.smoke
@pytest.mark.browser
async def test_a_browser_walks_it_without_an_error():
    from playwright.async_api import expect

    from tests.support.browser import browsing

    async with followed() as ask, browsing() as visit:
        page = (await visit(f"{ask.url}/ui")).page
        await page.get_by_role("navigation").get_by_role("link", name="Workflows").click()
        async with page.expect_response(re.compile("/data/gained/")):  # which it asks beside
            await page.get_by_role("link", name="w", exact=True).click()
        await expect(page.get_by_role("heading", name="Workflow w")).to_be_visible()
        await page.get_by_role("link", name="Agents").click()
        await expect(page.locator("#found")).not_to_be_empty()
