"""Roles: who may call, who may see the operators' routes, and who may change instances by them."""

from base64 import b64encode

import pytest

from kairos.core import Finished
from kairos.settings import EngineSettings, OidcSettings, Settings
from tests.e2e.batch_files import key

ROLES = ("caller", "viewer", "admin")


def bearer(token):
    return {"authorization": f"Bearer {token}"}


def keys(*roles):
    return tuple(key(role, "ops", role=role, name=role) for role in roles)


async def statuses(served, headers=None):
    """Of a call; of a look; of a change, which takes an engine out that there is not."""
    asked = (
        await served.chat(headers=headers),
        await served.operate("GET", "status", headers=headers),
        await served.operate("DELETE", "instances/no:1", headers=headers),
    )
    return [each.status for each in asked]


@pytest.mark.parametrize(
    ("role", "expected"),
    [("caller", [200, 403, 403]), ("viewer", [403, 200, 403]), ("admin", [200, 200, 404])],
)
async def test_a_key_may_what_its_role_may(kairos, standin, role, expected):
    served = await kairos(standin.url, key=keys(*ROLES))
    assert await statuses(served, bearer(role)) == expected
    assert await statuses(served, bearer("unknown")) == [401, 401, 401]
    assert await statuses(served) == [401, 401, 401]


@pytest.mark.parametrize(
    ("role", "expected"),
    [("caller", [200, 403, 403]), ("viewer", [403, 200, 403]), ("admin", [200, 200, 404])],
)
async def test_a_token_may_what_its_role_may(kairos, standin, issuer, role, expected):
    oidc = OidcSettings(issuer=issuer.url, audience="kairos", role_claim="roles")
    served = await kairos(standin.url, oidc=oidc)
    assert await statuses(served, bearer(issuer.token(roles=[role]))) == expected
    assert await statuses(served) == [401, 401, 401]


async def test_without_roles_the_operators_routes_are_for_whoever_reaches_them(kairos, standin):
    served = await kairos(standin.url, key=keys("caller"))
    assert await statuses(served, bearer("caller")) == [200, 200, 404]
    assert await statuses(served) == [401, 200, 404]


async def test_a_refusal_says_what_is_needed_as_openai_would(kairos, standin):
    served = await kairos(standin.url, key=keys(*ROLES))
    refused = (await served.operate("DELETE", "instances/no:1", headers=bearer("viewer"))).error()
    assert refused["code"] == "role_not_allowed"
    assert refused["message"] == "this needs the role admin; the key or token has viewer"
    refused = (await served.chat(headers=bearer("viewer"))).error()
    assert refused["message"] == "this needs the role caller; the key or token has viewer"


async def test_every_route_of_operators_but_health_asks(kairos, standin):
    served = await kairos(standin.url, key=keys("admin"))
    url = served.service.admin_url
    for path in ("/metrics", "/admin/status", "/admin/instances", "/docs", "/openapi.json", "/no"):
        assert (await served._ask("GET", url + path)).status == 401
    for path in ("/health/", "//health", "/Health", "/health/../metrics"):
        assert (await served._ask("GET", url + path)).status in (401, 404)
    assert (await served._ask("GET", url + "/health")).status == 200
    seen = await served._ask("GET", url + "/metrics", headers=bearer("admin"))
    assert b"kairos_requests_waiting" in seen.body


async def test_a_viewer_sees_metrics_and_instances(kairos, standin):
    served = await kairos(standin.url, key=keys("viewer"))
    url = served.service.admin_url
    for path in ("/metrics", "/admin/status", "/admin/instances"):
        assert (await served._ask("GET", url + path, headers=bearer("viewer"))).status == 200
    body = {"url": "http://h:1"}
    added = await served.operate("POST", "instances", json=body, headers=bearer("viewer"))
    assert added.status == 403
    assert list(served.balancer.ledger.instances) == [standin.url.removeprefix("http://")]


def basic(password):
    return {"authorization": f"Basic {b64encode(f'ann:{password}'.encode()).decode()}"}


async def test_a_browser_is_asked_for_a_key_and_shows_it_as_a_password_for_the_page_alone(
    kairos, standin
):
    served = await kairos(standin.url, key=keys(*ROLES))
    url = served.service.admin_url
    pages = ("/ui", "/ui/static/now.js", "/ui/data/now", "/ui/data/workflows")
    for path in pages:
        refused = await served._ask("GET", url + path)
        assert refused.status == 401
        assert refused.headers["www-authenticate"].startswith("Basic ")
        shown = [await served._ask("GET", url + path, headers=basic(each)) for each in ROLES]
        assert [each.status for each in shown] == [403, 200, 200]
        assert (await served._ask("GET", url + path, headers=bearer("viewer"))).status == 200
    assert (await served._ask("POST", url + "/ui", headers=basic("admin"))).status == 401
    for wrong in ("unknown", ""):
        assert (await served._ask("GET", url + "/ui", headers=basic(wrong))).status == 401
    broken = {"authorization": "Basic ???"}
    assert (await served._ask("GET", url + "/ui", headers=broken)).status == 401
    assert await statuses(served, basic("admin")) == [401, 401, 401]
    plain = await served.operate("GET", "status")
    assert "www-authenticate" not in plain.headers


async def test_with_roles_the_port_may_leave_loopback(kairos, standin):
    served = await kairos(standin.url, key=keys("admin"), admin_host="0.0.0.0")
    assert served.service.admin_url.startswith("http://0.0.0.0:")
    assert await statuses(served, bearer("admin")) == [200, 200, 404]
    assert (await served.operate("GET", "status")).status == 401


async def test_once_operators_had_keys_no_other_is_let_in_even_when_the_last_is_revoked(
    kairos, standin
):
    served = await kairos(standin.url, key=keys("caller", "admin"))

    def told(*roles):
        engine = (EngineSettings(url=standin.url),)
        return Settings(engine=engine, port=0, admin_port=0, key=keys(*roles))

    served.service.reload(lambda: told("caller"))
    assert await statuses(served, bearer("admin")) == [401, 401, 401]
    assert await statuses(served, bearer("caller")) == [200, 403, 403]
    served.service.reload(lambda: told("viewer"))
    assert await statuses(served, bearer("viewer")) == [403, 200, 403]


async def test_a_viewer_sees_workflows_and_agents_of_every_tenant(kairos, standin):
    served = await kairos(standin.url, key=(key("acme"), *keys("viewer")))
    headers = bearer("acme") | {"x-kairos-workflow-id": "run/1", "x-kairos-agent": "writer"}
    assert (await served.chat(headers=headers)).status == 200
    await served.facts.seen(Finished)
    theirs = (await served.ask("GET", "/v1/workflows/run/1", headers=bearer("acme"))).json()
    seen = await served.operate("GET", "tenants/acme/workflows/run/1", headers=bearer("viewer"))
    assert [each["agent"] for each in seen.json()["calls"]] == ["writer"]
    assert seen.json()["id"] == theirs["id"] == "run/1"
    for path in ("tenants/ops/workflows/run/1", "tenants/acme/workflows/run/2"):
        missing = await served.operate("GET", path, headers=bearer("viewer"))
        assert (missing.status, missing.error()["code"]) == (404, "workflow_not_found")
    agents = await served.operate("GET", "tenants/acme/agents", headers=bearer("viewer"))
    assert agents.status == 200
    assert (await served.operate("GET", "tenants/acme/agents")).status == 401


async def test_without_viewers_whoever_reaches_the_port_sees_the_workflows_of_all_tenants(
    kairos, standin
):
    served = await kairos(standin.url, key=keys("caller"))
    assert (await served.operate("GET", "tenants/acme/agents")).status == 200
    missing = await served.operate("GET", "tenants/acme/workflows/run/1")
    assert (missing.status, missing.error()["code"]) == (404, "workflow_not_found")
