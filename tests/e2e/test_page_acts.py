"""What the page may have done, and who may not: other sites' pages, and who only looks."""

import msgspec
import pytest

from kairos.live.ui.gains import GainsView
from tests.e2e.test_roles import basic, bearer, keys


def own(served, **changed):
    """The headers of the page's own requests."""
    host = served.service.admin_url.removeprefix("http://")
    said = {"origin": f"http://{host}", "content-type": "application/json"} | changed
    return {name: value for name, value in said.items() if value is not None}


async def told(served, path, headers, body=b"{}"):
    url = f"{served.service.admin_url}/ui/{path}"
    return await served._ask("POST", url, headers=headers, data=body)


@pytest.mark.parametrize(
    "changed",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": None},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
    ],
)
async def test_another_sites_page_can_have_nothing_done(kairos, standin, changed):
    served = await kairos(standin.url, key=keys("admin"))
    refused = await told(served, "ask/gained", own(served, **changed) | basic("admin"))
    assert (refused.status, refused.error()["code"]) == (403, "other_origin")


async def test_a_page_of_the_same_host_and_another_port_is_another(kairos, standin):
    served = await kairos(standin.url)
    refused = await told(served, "ask/gained", own(served, origin="http://127.0.0.1:1"))
    assert refused.status == 403


async def test_whoever_may_look_may_ask_what_it_gained(kairos, standin):
    served = await kairos(standin.url, key=keys("caller", "viewer", "admin"))
    for who, status in (("caller", 403), ("viewer", 200), ("admin", 200), ("unknown", 401)):
        assert (await told(served, "ask/gained", own(served) | basic(who))).status == status
        assert (await told(served, "ask/gained/stop", own(served) | bearer(who))).status == status
    assert (await told(served, "ask/gained", own(served))).status == 401


async def test_where_no_log_is_kept_nothing_is_worked_out(kairos, standin):
    served = await kairos(standin.url)
    answer = await told(served, "ask/gained", own(served))
    assert msgspec.json.decode(answer.body, type=GainsView).state == "no_log"
