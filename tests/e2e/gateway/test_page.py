"""The operators' page in a real browser, before a whole Kairos. Where `KAIROS_SCREENSHOTS` names a
directory, the pictures of the documentation are taken there."""

import asyncio
import json
import os
import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from kairos.core import Arrived, Finished
from tests.e2e.client import LIMIT_S
from tests.e2e.served import serving
from tests.e2e.test_roles import keys
from tests.support.browser import browsing
from tests.support.simulate import standin as standins
from tests.support.simulate.standin import StandInSettings, Timing

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


async def picture(page, name, height):
    directory = os.environ.get("KAIROS_SCREENSHOTS")
    if directory is not None:
        await page.set_viewport_size({"width": 1280, "height": height})
        await page.evaluate("window.scrollTo(0, 0)")
        await page.screenshot(path=Path(directory) / f"{name}.png")


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


@pytest.mark.smoke
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
        await picture(page, "now", 730)
    well.release(6)
    await asyncio.gather(*calls)


def fan_out(number):
    """A planner, whose plan so many workers carry out at once, and a writer who joins them."""
    workers = [f"work-{n}" for n in range(number)]
    yield ("plan", "planner", ())
    yield from ((name, "worker", ("plan",)) for name in workers)
    yield ("write", "writer", workers[:32])


async def run_flow(served, steps, workflow="flow", tool_s=0.0, **asked):
    """The calls of a workflow, each once those before it have ended, and a tool its time."""
    done = {}
    for name, agent, parents in steps:
        if not {*parents} <= {each for each, call in done.items() if call.done()}:
            await asyncio.gather(*(done[parent] for parent in parents))
            await asyncio.sleep(tool_s)
        said = {
            "X-Request-Id": name and f"{workflow}.{name}",
            "X-Kairos-Workflow-Id": workflow,
            "X-Kairos-App": "report",
            "X-Kairos-Agent": agent,
            "X-Kairos-Parent-Id": ",".join(f"{workflow}.{each}" for each in parents),
        }
        said = {key: value for key, value in said.items() if value}
        done[name] = asyncio.create_task(
            served.chat(said, stream=True, **{"max_tokens": 20} | asked)
        )
        await asyncio.sleep(0)
    answers = await asyncio.gather(*done.values())
    assert {each.status for each in answers} == {200}


async def test_a_workflow_is_shown_as_a_graph_and_along_time_and_each_call_is_explained(
    visit, kairos, standin, expect
):
    served = await kairos(standin.url, max_num_seqs=8)
    await run_flow(served, fan_out(38))
    await served.ask("POST", "/v1/workflows/flow/end")
    options = {"viewport": {"width": 1280, "height": 900}}
    page = (await visit(served.service.admin_url + "/ui/workflows", **options)).page
    await expect(page.get_by_role("status").last).to_have_text("1 of the 1 that are remembered")
    await page.get_by_role("link", name="flow", exact=True).click()
    await expect(page).to_have_title("flow · Kairos")
    graph = page.get_by_role("group", name="40 calls")
    await expect(graph.get_by_role("link")).to_have_count(40)
    assert await graph.locator(".edge").count() == 38 + 32
    rows = page.get_by_role("table", name="Calls").get_by_role("row")
    await expect(rows).to_have_count(41)
    await expect(rows.nth(40).get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("waited .* s, prompt .* s, answer .* s")
    )
    await graph.get_by_role("link", name="writer, finished").focus()
    await page.keyboard.press("Enter")
    why = page.locator("#why")
    await expect(why).to_contain_text("writer flow.write")
    await expect(why).to_contain_text("its turn: first by policy")
    await expect(why).to_contain_text("joins 32 calls")
    await expect(rows.nth(40).get_by_role("button", name="writer")).to_have_attribute(
        "aria-pressed", "true"
    )


async def test_it_shows_where_the_time_of_a_workflow_went(visit, kairos, expect):
    timing = Timing(step_s=0.02, prefill_tokens_per_s=2_000)
    settings = StandInSettings(model="tiny", max_num_seqs=2, timing=timing)
    async with standins.serve(settings) as engine:
        served = await kairos(engine.url, max_num_seqs=2)
        searches = [f"search-{n}" for n in range(3)]
        steps = [
            ("plan", "planner", ()),
            *((name, "searcher", ("plan",)) for name in searches),
            ("draft", "writer", searches),
            ("facts", "checker", ("draft",)),
            ("style", "critic", ("draft",)),
            ("final", "writer", ("facts", "style")),
        ]
        words = {"messages": [{"role": "user", "content": "What goes into it? " * 120}]}
        asked = {"max_tokens": 30} | words
        names = [f"report-{n}" for n in range(17, 21)]
        await asyncio.gather(*(run_flow(served, steps, each, 0.3, **asked) for each in names))
        await served.ask("POST", "/v1/workflows/report-17/end")
        options = {"viewport": {"width": 1280, "height": 1000}}
        page = (await visit(served.service.admin_url + "/ui/workflows", **options)).page
        await expect(page.get_by_role("link", name="report-18")).to_be_visible()
        await picture(page, "workflows", 460)
        await page.get_by_role("link", name="report-17", exact=True).click()
        said = await page.locator("#split p").inner_text()
        shares = [int(each) for each in re.findall(r"\(([0-9]+) %\)", said)]
        assert len(shares) == 4
        assert min(shares) > 0
        assert sum(shares) == pytest.approx(100, abs=2)
        await page.get_by_role("link", name="writer, finished").last.click()
        await expect(page.locator("#why")).to_contain_text("joins 2 calls")
        await picture(page, "workflow", 1080)


async def test_what_was_learnt_of_agents_is_shown_and_how_it_changed(
    visit, kairos, expect, monkeypatch
):
    timing = Timing(step_s=0.002, prefill_tokens_per_s=20_000)
    monkeypatch.setattr("kairos.gateway.page.agents.EVERY_S", 0.2)
    async with standins.serve(StandInSettings(model="tiny", timing=timing)) as engine:
        served = await kairos(engine.url)
        url = served.service.admin_url + "/ui/agents"
        page = (await visit(url)).page
        await expect(page.get_by_text("Nothing is known yet")).to_be_visible()
        steps = [("plan", "planner", ()), ("write", "writer", ("plan",))]
        for n in range(20):
            await run_flow(served, steps, f"report-{n}", max_tokens=10 + 2 * n)
            await served.ask("POST", f"/v1/workflows/report-{n}/end")

        def samples():
            profile, _ = served.balancer.estimates.published(("default", "report", "writer"))
            return 0 if profile is None else profile.samples

        await served.facts.until(lambda: samples() >= 16)
        path = "/ui/data/agents/history?tenant=default&app=report&agent=writer"
        async with asyncio.timeout(LIMIT_S):
            noted = []
            while not noted or noted[-1]["samples"] < 16:
                answer = await served._ask("GET", served.service.admin_url + path)
                noted = answer.json()["points"]
                await asyncio.sleep(0.05)
        page = (await visit(url, viewport={"width": 1280, "height": 700})).page
        table = page.get_by_role("table", name="What was learnt of agents")
        await expect(table.get_by_role("row")).to_have_count(4)
        row = table.get_by_role("row").filter(has_text="writer")
        await expect(row).to_contain_text("settled")
        await expect(row).to_contain_text(
            re.compile("middle .* s, mean .* s, 95 of 100 under .* s")
        )
        await expect(page.get_by_label("Tenant")).to_have_value("default")
        await row.get_by_role("button", name="writer").click()
        history = page.get_by_role("region", name="How writer of report changed")
        await expect(history).to_contain_text(re.compile("Since .*: from .* calls to (1[6-9]|20)"))
        await expect(history.get_by_role("img", name=re.compile("^One call, mean"))).to_be_visible()
        await picture(page, "agents", 900)


async def test_workflows_are_found_by_what_is_known_of_them(visit, served, expect):
    for n in range(60):
        await run_flow(served, [("", "one", ())], workflow=f"flow-{n}")
    await served.chat({"X-Kairos-Workflow-Id": "other", "X-Kairos-App": "shop"})
    for n in range(10):
        await served.ask("POST", f"/v1/workflows/flow-{n}/end")
    page = (await visit(served.service.admin_url + "/ui/workflows?app=report")).page
    found = page.get_by_role("status").last
    await expect(found).to_have_text("60 of the 61 that are remembered")
    pages = page.get_by_role("navigation", name="Pages of workflows")
    await pages.get_by_role("button", name="After").click()
    await expect(pages).to_contain_text("51 to 60 of 60")
    await page.get_by_label("State").select_option("ended")
    await page.keyboard.press("Tab")
    await page.get_by_role("button", name="Search").click()
    await expect(found).to_have_text("10 of the 61 that are remembered")
    await page.get_by_label("State").select_option("")
    await page.get_by_label("App").fill("")
    await page.get_by_label("Id contains").fill("the")
    await page.keyboard.press("Enter")
    await expect(found).to_have_text("1 of the 61 that are remembered")
    assert "part=the" in page.url
    await page.get_by_role("link", name="other").click()
    await expect(page.get_by_role("heading", name="Workflow other")).to_be_visible()


async def test_a_workflow_that_is_not_known_is_said_to_be_so(visit, served, expect):
    seen = await visit(served.service.admin_url + "/ui/workflow?tenant=default&id=nobody")
    await expect(seen.page.get_by_text("the workflow 'nobody' is not known here")).to_be_visible()
    seen.errors = [each for each in seen.errors if "404" not in each]  # the browser's own


async def test_an_open_workflow_is_followed(visit, kairos, engine, expect):
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.when_released
    calls = await asking(served, 2, Agent="agent-{n}", **{"Workflow-Id": "flow"})
    page = (await visit(served.service.admin_url + "/ui")).page
    await page.get_by_role("link", name="flow", exact=True).first.click()
    outcomes = page.locator("#calls tbody tr td:last-child")
    await expect(outcomes).to_have_text(["runs", "waits"])
    engine.release()
    await expect(outcomes).to_have_text(["finished", "runs"])
    engine.release()
    await asyncio.gather(*calls)
    await served.ask("POST", "/v1/workflows/flow/end")
    await expect(page.locator('#figures [data-key="State"] dd')).to_have_text("ended")


async def test_where_operators_need_keys_the_browser_shows_one(visit, kairos, engine, expect):
    served = await kairos(engine.url, key=keys("caller", "viewer"))
    shown = {"username": "ann", "password": "viewer"}
    page = (await visit(served.service.admin_url + "/ui", http_credentials=shown)).page
    await expect(page.get_by_role("status")).to_have_text("Live")
    await page.get_by_role("link", name="Workflows").click()
    await expect(page.get_by_role("status").last).to_have_text("0 of the 0 that are remembered")


async def test_what_it_gained_is_found_out_and_shown_with_how_far_it_is_to_be_trusted(
    visit, kairos, expect, tmp_path
):
    timing = Timing(step_s=0.004, prefill_tokens_per_s=20_000)
    settings = StandInSettings(model="tiny", max_num_seqs=2, timing=timing)
    async with standins.serve(settings) as engine:
        served = await kairos(engine.url, max_num_seqs=2, log_dir=str(tmp_path))
        steps = [("plan", "planner", ()), ("write", "writer", ("plan",))]
        lengths = [8 + 9 * (n % 4) for n in range(24)]
        flows = (
            run_flow(served, steps, f"report-{n}", max_tokens=length)
            for n, length in enumerate(lengths)
        )
        await asyncio.gather(*flows)
        for n in range(24):
            await served.ask("POST", f"/v1/workflows/report-{n}/end")
        options = {"viewport": {"width": 1280, "height": 900}}
        page = (await visit(served.service.admin_url + "/ui", **options)).page
        await page.get_by_role("link", name="Gained").click()
        await page.get_by_role("button", name="Find it out").click()
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        table = page.get_by_role("table", name="End to end, by policy")
        await expect(table).to_be_visible()
        rows = table.get_by_role("row")
        await expect(rows).to_have_count(6)
        await expect(rows.nth(1)).to_contain_text("As it was")
        await expect(rows.nth(2)).to_contain_text("kairos, kairos: what served")
        await expect(rows.nth(3)).to_contain_text("fcfs, round-robin")
        await expect(page.locator("#trust")).to_contain_text(re.compile("It is .* % off"))
        await picture(page, "gained", 900)
        await page.get_by_role("link", name="report-0", exact=True).click()
        await expect(page.locator("#gain")).to_contain_text("under fcfs, round-robin")


async def test_where_no_log_is_kept_the_page_says_what_to_set(visit, served, expect):
    page = (await visit(served.service.admin_url + "/ui/gained")).page
    await expect(page.get_by_text("kairos serve --log DIR")).to_be_visible()
    await expect(page.get_by_role("button")).to_have_count(0)


async def test_an_admin_operates_from_the_page_and_is_asked_before_anything_is_done(
    visit, kairos, engine, engines, expect, tmp_path
):
    other = await engines()
    audit = tmp_path / "audit.jsonl"
    served = await kairos(
        engine.url, key=keys("caller", "viewer", "admin"), audit_log=str(audit), max_num_seqs=1
    )
    engine.answer = engine.when_released
    said = {"authorization": "Bearer caller", "x-kairos-workflow-id": "flow"}
    call = asyncio.create_task(served.chat(said))
    await served.facts.seen(Arrived)
    shown = {"username": "ann", "password": "admin"}
    options = {"http_credentials": shown, "viewport": {"width": 1280, "height": 700}}
    seen = await visit(served.service.admin_url + "/ui", **options)
    page = seen.page
    await page.get_by_role("link", name="Operate").click()
    await expect(page.get_by_text("You are admin.")).to_be_visible()
    did, table = page.locator("#did"), page.get_by_role("table", name="Engines")
    await page.get_by_label("URL").fill(other.url)
    await page.get_by_role("button", name="Add the engine").click()
    await page.get_by_role("button", name="No").click()
    await expect(table.get_by_role("row")).to_have_count(2)
    await page.get_by_role("button", name="Add the engine").click()
    await expect(page.get_by_role("dialog")).to_contain_text(f"Send calls to {other.url}?")
    await page.get_by_role("button", name="Yes, do it").click()
    await expect(table.get_by_role("row")).to_have_count(3)
    await expect(did).to_have_text(f"{other.url.removeprefix('http://')} is added")
    await picture(page, "operate", 700)
    await page.get_by_role("button", name=f"Drain and remove {other.url[7:]}").click()
    await page.get_by_role("button", name="Yes, do it").click()
    await expect(table.get_by_role("row")).to_have_count(2)
    await page.get_by_label("URL").fill("gopher://x")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Yes, do it").click()
    await expect(did).to_have_text(re.compile("gopher"))
    await page.get_by_role("link", name="Workflows").click()
    await page.get_by_role("link", name="flow", exact=True).click()
    await page.get_by_role("button", name="Cancel this workflow").click()
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Cancel this workflow").click()
    await page.get_by_role("button", name="Yes, do it").click()
    await expect(page.get_by_text("It is cancelled")).to_be_visible()
    assert (await call).error()["code"] == "workflow_cancelled"
    acts = [json.loads(line) for line in audit.read_text().splitlines()]
    done = [each["what"].rpartition("/")[2] for each in acts if each.get("name") == "admin"]
    assert done == ["add", "drain", "add", "cancel"]
    seen.errors = [each for each in seen.errors if "400" not in each]  # the browser's own


async def test_a_viewer_sees_engines_and_why_nothing_can_be_done(visit, kairos, engine, expect):
    served = await kairos(engine.url, key=keys("viewer", "admin"))
    shown = {"username": "ann", "password": "viewer"}
    page = (await visit(served.service.admin_url + "/ui/operate", http_credentials=shown)).page
    await expect(page.get_by_text("this needs a key of role admin")).to_be_visible()
    await expect(page.get_by_role("row")).to_have_count(2)
    await expect(page.get_by_role("button")).to_have_count(0)


STEPS = [("plan", "planner", ()), ("write", "writer", ("plan",))]


@pytest.fixture
async def troubled(kairos, engines, tmp_path):
    """One good engine and one that nobody answers at, a log, workflows that ended, and a queue."""
    timing = Timing(step_s=0.002, prefill_tokens_per_s=20_000)
    broken = await engines()
    await broken.stop()
    async with standins.serve(StandInSettings(model="tiny", max_num_seqs=2, timing=timing)) as well:
        served = await kairos(well.url, broken.url, joins=1, max_num_seqs=2, log_dir=str(tmp_path))
        await asyncio.gather(*(run_flow(served, STEPS, f"report-{n}") for n in range(12)))
        for n in range(12):
            await served.ask("POST", f"/v1/workflows/report-{n}/end")
        yield served


class Clicks:
    """Counts what an operator does to get from *Now* to an answer."""

    def __init__(self):
        self.made = 0

    async def on(self, target):
        self.made += 1
        await target.click()

    def check(self):
        assert self.made <= 3


@pytest.fixture
def clicks():
    counted = Clicks()
    yield counted
    counted.check()


async def test_why_is_this_workflow_slow_in_three_clicks(visit, troubled, expect, clicks):
    page = (await visit(troubled.service.admin_url + "/ui")).page
    await clicks.on(page.get_by_role("link", name="Workflows"))
    await clicks.on(page.get_by_role("link", name="report-3", exact=True))
    await expect(page.locator("#split")).to_contain_text("waiting")
    await clicks.on(page.get_by_role("link", name="writer, finished"))
    await expect(page.locator("#why")).to_contain_text("its turn: first by policy")


async def test_which_engine_is_bad_without_a_click(visit, troubled, expect, clicks):
    page = (await visit(troubled.service.admin_url + "/ui")).page
    first = page.locator("#instances > li").first
    await expect(first).to_contain_text("not in use")
    await expect(first).to_contain_text("nothing answers there")


async def test_who_starves_in_one_click(visit, kairos, engine, expect, clicks):
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.when_released
    calls = await asking(served, 8, App="shop", Agent="agent-{n}", **{"Workflow-Id": "w{n}"})
    page = (await visit(served.service.admin_url + "/ui")).page
    longest = page.get_by_role("list", name="Who has waited longest").get_by_role("listitem")
    await expect(longest).to_have_count(5)
    await expect(longest.first).to_contain_text("w1 shop / agent-1, of default, standard")
    await clicks.on(longest.first.get_by_role("link"))
    await expect(page.locator("#split")).to_contain_text("waiting")
    engine.release(8)
    await asyncio.gather(*calls)


async def test_is_it_worth_it_in_two_clicks(visit, troubled, expect, clicks):
    page = (await visit(troubled.service.admin_url + "/ui")).page
    await clicks.on(page.get_by_role("link", name="Gained"))
    await clicks.on(page.get_by_role("button", name="Find it out"))
    await expect(page.locator("#verdict")).to_contain_text(
        re.compile("would have taken|cannot be told")
    )
    await expect(page.locator("#trust")).to_contain_text("% off")


async def test_what_happened_at_a_time_in_two_clicks_and_a_third_leads_to_a_workflow(
    visit, troubled, expect, clicks
):
    options = {"viewport": {"width": 1280, "height": 900}}
    page = (await visit(troubled.service.admin_url + "/ui", **options)).page
    await clicks.on(page.get_by_role("link", name="Past"))
    await page.get_by_label("From").fill(f"{datetime.now() - timedelta(minutes=3):%Y-%m-%dT%H:%M}")
    await clicks.on(page.get_by_role("button", name="Show"))
    await expect(figure(page, "Finished")).to_have_text("24")
    changes = page.get_by_role("list").filter(has_text="joined")
    await expect(changes).to_contain_text("instance 127.0.0.1")
    rows = page.get_by_role("table", name="The calls that took longest").get_by_role("row")
    await expect(rows).to_have_count(21)
    await picture(page, "past", 900)
    await clicks.on(rows.nth(1).get_by_role("link"))
    await expect(page.locator("#split")).to_contain_text("waiting")


async def test_of_a_time_without_a_log_the_page_says_what_to_set(visit, served, expect):
    seen = await visit(served.service.admin_url + "/ui/past?from=2025-06-30T03:12&seconds=60")
    await expect(seen.page.get_by_role("status").last).to_contain_text("kairos serve --log DIR")
    seen.errors = [each for each in seen.errors if "400" not in each]  # the browser's own
