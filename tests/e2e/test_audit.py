"""The audit log of a whole Kairos: who did what, and who was refused."""

import json
from hashlib import sha256

import pytest

from kairos.settings import EngineSettings, KeySettings, OidcSettings, Settings
from tests.e2e.test_roles import ROLES, bearer, keys


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


def lines(path):
    """Without instants."""
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(each.pop("at").endswith("Z") for each in told)
    return told


async def test_changes_of_instances_are_told_with_who_made_them_and_what_came_of_it(
    kairos, standin, engine, path
):
    served = await kairos(standin.url, key=keys(*ROLES), audit_log=str(path))
    name = engine.url.removeprefix("http://")
    admin = bearer("admin")
    await served.operate("GET", "status", headers=admin)  # a look is none
    await served.operate("POST", "instances", json={"url": engine.url}, headers=admin)
    await served.operate("DELETE", f"instances/{name}", headers=admin)
    await served.operate("DELETE", "instances/no:1", headers=admin)
    page = {"origin": "https://evil.example"} | admin
    await served.operate("POST", "instances", json={"url": engine.url}, headers=page)
    by = {"port": "operators", "tenant": "ops", "name": "admin", "address": "127.0.0.1"}
    assert lines(path) == [
        {"what": "POST /admin/instances", "target": name, "status": 201} | by,
        {"what": f"DELETE /admin/instances/{name}", "status": 202} | by,
        {"what": "DELETE /admin/instances/no:1", "status": 404} | by,
        {"what": "POST /admin/instances", "status": 403} | by,
    ]


async def test_without_roles_it_is_told_from_where_a_change_came(kairos, standin, path):
    served = await kairos(standin.url, audit_log=str(path))
    await served.operate("DELETE", "instances/no:1")
    assert lines(path) == [
        {"what": "DELETE /admin/instances/no:1", "status": 404}
        | {"port": "operators", "address": "127.0.0.1"}
    ]


async def test_who_is_refused_is_told_and_no_key_token_or_body(kairos, standin, issuer, path):
    oidc = OidcSettings(issuer=issuer.url, audience="kairos", role_claim="roles")
    served = await kairos(standin.url, key=keys(*ROLES), oidc=oidc, audit_log=str(path))
    secret = "kai-very-secret"
    viewer, expired = issuer.token(roles=["viewer"]), issuer.token(exp=1_700_000_000)
    for token in (secret, secret, viewer, expired):
        assert (await served.chat(headers=bearer(token), user="body-of-mine")).status >= 401
    await served.ask("GET", "/v1/models", headers=bearer(secret))
    await served.operate("GET", "status", headers=bearer("caller"))
    await served.operate("GET", "status")
    assert (await served.chat(headers=bearer("caller"))).status == 200
    await served.operate("DELETE", "instances/no:1", headers=bearer("admin"))  # written at once
    expected = [
        {"port": "callers", "address": "127.0.0.1", "code": "invalid_api_key", "status": 401},
        {"port": "callers", "tenant": "acme", "name": "agent-7", "address": "127.0.0.1"}
        | {"code": "role_not_allowed", "status": 403},
        {"port": "callers", "address": "127.0.0.1", "code": "token_expired", "status": 401},
        {"port": "operators", "tenant": "ops", "name": "caller", "address": "127.0.0.1"}
        | {"code": "role_not_allowed", "status": 403},
        {"port": "operators", "address": "127.0.0.1", "code": "invalid_api_key", "status": 401},
    ]
    assert lines(path)[:-1] == [{"what": "refused"} | each for each in expected]
    text = path.read_text()
    assert not any(each in text for each in (secret, viewer, expired, "body-of-mine"))


async def test_a_tenant_that_is_over_its_quota_is_told_by_its_key(kairos, standin, path):
    from tests.support.settings.quotas import QuotaSettings

    served = await kairos(
        standin.url,
        key=keys("caller"),
        quota=(QuotaSettings(tenant="ops", calls_per_minute=1),),
        audit_log=str(path),
    )
    assert (await served.chat(headers=bearer("caller"))).status == 200
    assert (await served.chat(headers=bearer("caller"))).status == 429
    assert (await served.operate("DELETE", "instances/no:1")).status == 404  # it is written at once
    assert lines(path)[0] == {
        "what": "refused",
        "port": "callers",
        "tenant": "ops",
        "name": "caller",
        "code": "quota_exceeded",
        "status": 429,
    }


async def test_settings_that_are_read_again_are_told(kairos, standin, path):
    served = await kairos(standin.url, key=keys("caller"), audit_log=str(path))

    def told():
        engine = (EngineSettings(url=standin.url),)
        return Settings(engine=engine, port=0, admin_port=0, key=keys("admin"), audit_log=str(path))

    served.service.reload(told)
    assert lines(path) == [{"what": "reload", "target": "key"}]


async def test_a_key_without_a_name_is_told_by_the_digits_that_commands_call_it_by(
    kairos, standin, path
):
    digest = sha256(b"kai-1").hexdigest()
    key = KeySettings(sha256=digest, tenant="ops", role="admin")
    served = await kairos(standin.url, key=(key,), audit_log=str(path))
    await served.operate("DELETE", "instances/no:1", headers=bearer("kai-1"))
    [line] = lines(path)
    assert line["name"] == digest[:8]
