"""The operators' page in a real browser, before a whole Kairos. Where `KAIROS_SCREENSHOTS` names a
directory, the pictures of the documentation are taken there."""

import asyncio
import os
import re
from pathlib import Path

import pytest

from kairos.events import Arrived, Finished
from tests.e2e.served import serving
from tests.support.browser import browsing

pytestmark = pytest.mark.browser
SCRIPT = "<script>document.title='taken'</script><img src=x onerror=document.title='taken'>"


@pytest.fixture
async def visit():
    async with browsing() as visit:
        yield visit


@pytest.fixture
def expect():
    from playwright.async_api import expect

    return expect


async def picture(page, name):
    directory = os.environ.get("KAIROS_SCREENSHOTS")
    if directory is not None:
        await page.screenshot(path=Path(directory) / f"{name}.png", full_page=True)


def figure(page, name):
    return page.locator(f'#figures [data-key="{name}"] dd')


async def asking(served, number, **headers):
    """Calls under way, begun one after the other."""
    before, calls = len(served.facts.all(Arrived)), []
    for n in range(number):
        said = {f"X-Kairos-{name}": value.format(n=n) for name, value in headers.items()}
        calls.append(asyncio.create_task(served.chat(said)))
        await served.facts.seen(Arrived, before + n + 1)
    return calls


async def test_what_waits_is_shown_in_its_order_and_follows_what_happens(
    visit, kairos, engine, expect
):
    served = await kairos(engine.url, max_num_seqs=1, kv_tokens=10_000)
    engine.answer = engine.when_released
    calls = await asking(served, 4, App="shop", Agent="agent-{n}", **{"Workflow-Id": "w{n}"})
    page = (await visit(served.service.admin_url + "/ui")).page
    await expect(figure(page, "Waiting")).to_have_text("3")
    await expect(figure(page, "Running")).to_have_text("1")
    await expect(figure(page, "Open workflows")).to_have_text("4")
    rows = page.get_by_role("table", name="Queue").get_by_role("row")
    order = [each.request.workflow_id for each in served.balancer.queued(3)]
    for place, workflow in enumerate(order, start=1):
        await expect(rows.nth(place)).to_contain_text(
            f"{place}{workflow}shop / agent-{workflow[1]}"
        )
        await expect(rows.nth(place)).to_contain_text("its turn by the policy")
    card = page.get_by_role("listitem").filter(has_text=engine.url.removeprefix("http://"))
    await expect(card).to_contain_text("1 of 1 sequences")
    words = "KV memory: [0-9]+ of 10.0 k tokens held, 0 kept"
    await expect(card.get_by_role("img")).to_have_attribute("aria-label", re.compile(words))
    engine.release()
    await served.facts.seen(Finished)
    await expect(figure(page, "Waiting")).to_have_text("2")
    await expect(rows).to_have_count(3)
    engine.release(3)
    await asyncio.gather(*calls)
    await expect(page.get_by_text("Nothing waits.")).to_be_visible()


async def test_whatever_names_and_errors_say_is_shown_and_never_run(visit, kairos, engines, expect):
    engine, broken = await engines(), await engines()
    engine.models = [SCRIPT]

    async def refuses(request):
        from aiohttp import web

        return web.Response(status=200, text=SCRIPT, reason=SCRIPT)

    broken.probe = refuses
    served = await kairos(engine.url, broken.url, joins=1)
    page = (await visit(served.service.admin_url + "/ui")).page
    await expect(page.get_by_text(SCRIPT).first).to_be_visible()
    await expect(page).to_have_title("Now · Kairos")
    assert await page.locator("img").count() == 0
    assert await page.locator("script").count() == 1


async def test_the_queue_is_turned_page_by_page_with_the_keyboard(visit, kairos, engine, expect):
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.when_released
    calls = await asking(served, 121)
    page = (await visit(served.service.admin_url + "/ui")).page
    pages = page.get_by_role("navigation", name="Pages of the queue")
    first_cell = page.get_by_role("table", name="Queue").get_by_role("row").nth(1).locator("td")
    await expect(pages).to_contain_text("1 to 50 of 120")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await expect(pages.get_by_role("button", name="Before")).to_be_disabled()
    await pages.get_by_role("button", name="After").focus()
    await page.keyboard.press("Enter")
    await expect(first_cell.first).to_have_text("51")
    await page.keyboard.press("Enter")
    await expect(pages).to_contain_text("101 to 120 of 120")
    await expect(first_cell.first).to_have_text("101")
    await expect(pages.get_by_role("button", name="After")).to_be_disabled()
    engine.release(30)  # the page that was seen is past the end by now
    await expect(pages).to_contain_text("51 to 90 of 90")
    await expect(first_cell.first).to_have_text("51")
    engine.release(91)
    await asyncio.gather(*calls)


async def test_it_says_when_what_it_shows_is_old(visit, engine, expect, unused_port):
    async with serving(engine.url, admin_port=unused_port) as served:
        seen = await visit(served.service.admin_url + "/ui")
        await expect(seen.page.get_by_role("status")).to_have_text("Live")
    await expect(seen.page.get_by_role("status")).to_have_text(re.compile("what is shown is old"))
    async with serving(engine.url, admin_port=unused_port):
        await expect(seen.page.get_by_role("status")).to_have_text("Live")
    seen.errors = [each for each in seen.errors if "ERR_CONNECTION_REFUSED" not in each]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_pool_at_work(visit, engines, kairos, expect, scheme):
    """What the documentation shows."""
    well, broken = await engines(), await engines()
    await broken.stop()
    served = await kairos(well.url, broken.url, joins=1, max_num_seqs=3, kv_tokens=4_000)
    well.answer = well.when_released
    words = {"messages": [{"role": "user", "content": "What goes into the report? " * 160}]}
    named = {"X-Kairos-App": "report"}
    calls = []
    for n, agent in enumerate(["planner", "writer", "critic", "writer", "planner", "critic"]):
        whose = named | {"X-Kairos-Agent": agent, "X-Kairos-Workflow-Id": f"report-{n // 2 + 1}"}
        calls.append(asyncio.create_task(served.chat(whose, max_tokens=600 - 80 * n, **words)))
        await served.facts.seen(Arrived, n + 1)
    options = {"color_scheme": scheme, "viewport": {"width": 1280, "height": 720}}
    page = (await visit(served.service.admin_url + "/ui", **options)).page
    await expect(page.get_by_text("nothing answers there")).to_be_visible()
    await expect(figure(page, "Running")).to_have_text(re.compile("[1-3]"))
    paper = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    if scheme == "light" and "KAIROS_SCREENSHOTS" in os.environ:
        await asyncio.sleep(8)  # something to draw
        await picture(page, "now")
    well.release(6)
    await asyncio.gather(*calls)
