"""Signed tokens of an identity provider, over real sockets: the provider publishes its keys on
loopback, exchanges them, and is away."""

import asyncio
import logging

import openai
import pytest
from aiohttp import web

from kairos.core import Arrived
from kairos.gateway.auth import jwks
from kairos.settings import OidcSettings
from tests.e2e.batch_files import key
from tests.e2e.client import LIMIT_S
from tests.e2e.served import NAMES
from tests.support.issuer import new_key
from tests.support.loop_clock import turns

MESSAGES = [{"role": "user", "content": "Hello there"}]


@pytest.fixture
def soon(monkeypatch):
    """Lets keys be fetched again soon; awaited, until they may."""
    monkeypatch.setattr(jwks, "AGAIN_S", 0.2)
    return lambda: asyncio.sleep(0.25)


def oidc(issuer, **given):
    return OidcSettings(issuer=issuer.url, audience="kairos", **given)


def bearer(token):
    return {"authorization": f"Bearer {token}"}


async def code(served, token, status=401):
    answer = await served.chat(headers=bearer(token))
    assert answer.status == status
    told = answer.error()
    assert token.split(".")[1] not in answer.body.decode()
    return told["code"], told["message"]


@pytest.fixture
async def served(kairos, standin, issuer):
    return await kairos(standin.url, oidc=oidc(issuer))


async def test_openais_client_calls_with_a_token_as_the_tenant_and_app_that_it_names(
    kairos, standin, issuer
):
    settings = oidc(issuer, app_claim="app", class_claim="class")
    served = await kairos(standin.url, oidc=settings)
    token = issuer.token(app="qa", **{"class": ["batch", "standard"]})
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=token) as client:
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=3)
        assert answer.usage.completion_tokens == 3
        assert [each.id async for each in await client.models.list()] == ["tiny"]
    request = (await served.facts.seen(Arrived)).request
    assert (request.tenant, request.app, request.service_class) == ("acme", "qa", "batch")
    assert issuer.asked == 1


async def test_each_tenant_sees_its_own_workflows_alone(served, issuer):
    acme, umbrella = issuer.token(), issuer.token(tenant="umbrella")
    headers = bearer(acme) | {"x-kairos-workflow-id": "w1"}
    assert (await served.chat(headers=headers)).status == 200
    assert (await served.ask("GET", "/v1/workflows/w1", headers=bearer(acme))).status == 200
    other = await served.ask("GET", "/v1/workflows/w1", headers=bearer(umbrella))
    assert (other.status, other.error()["code"]) == (404, "workflow_not_found")
    assert (await served.ask("GET", "/v1/agents", headers=bearer("a.b.c"))).status == 401


async def test_a_wrong_token_is_answered_as_openai_does_and_its_client_says_so(served, issuer):
    options = {"base_url": f"{served.url}/v1", "max_retries": 0}
    async with openai.AsyncOpenAI(api_key=issuer.token(aud="billing"), **options) as client:
        with pytest.raises(openai.AuthenticationError, match="is for another audience"):
            await client.chat.completions.create(model="tiny", messages=MESSAGES)
    expired = issuer.token(exp=1_700_000_000)
    assert await code(served, expired) == ("token_expired", "the token has expired")
    forged = issuer.token(key=new_key("RS256", "one"))
    assert await code(served, forged) == ("invalid_token", "the token's signature is wrong")
    assert (await served.chat()).status == 401
    assert served.facts.all(Arrived) == []


async def test_keys_of_the_file_count_beside_tokens(kairos, standin, issuer):
    served = await kairos(standin.url, oidc=oidc(issuer), key=(key("kai-1", "umbrella"),))
    assert (await served.chat(headers=bearer("kai-1"))).status == 200
    assert (await served.chat(headers=bearer(issuer.token()))).status == 200
    arrived = [fact.request.tenant for fact in served.facts.all(Arrived)]
    assert arrived == ["umbrella", "acme"]


async def test_a_call_waits_for_the_keys_when_the_issuer_has_exchanged_them(soon, served, issuer):
    old = issuer.token()
    assert (await served.chat(headers=bearer(old))).status == 200
    issuer.keys = [new_key("ES256", "two")]
    await soon()
    new = issuer.token(alg="ES256")
    answers = await asyncio.gather(*(served.chat(headers=bearer(new)) for _ in range(20)))
    assert [each.status for each in answers] == [200] * 20
    assert issuer.asked == 2  # one fetch, for all of them
    assert (await code(served, old))[0] == "invalid_token"  # its key is published no more


async def test_made_up_names_of_keys_make_kairos_ask_seldom(served, issuer):
    assert (await served.chat(headers=bearer(issuer.token()))).status == 200
    for number in range(50):
        token = issuer.token(header={"kid": f"k{number}"})
        assert "does not publish" in (await code(served, token))[1]
    assert issuer.asked == 1
    assert (await served.chat(headers=bearer(issuer.token()))).status == 200


async def test_while_the_issuer_is_away_keys_serve_and_tokens_are_told_to_come_again(
    kairos, standin, issuer, soon, caplog
):
    port = int(issuer.url.rpartition(":")[2])
    await issuer.stop()
    served = await kairos(standin.url, oidc=oidc(issuer))
    answer = await served.chat(headers=bearer(issuer.token()))
    assert (answer.status, answer.error()["code"]) == (503, "issuer_unreachable")
    assert answer.headers["retry-after"] == "10"
    await issuer.start(port)
    async with asyncio.timeout(LIMIT_S):
        await issuer.asked_once_more.wait()
        while (await served.chat(headers=bearer(issuer.token()))).status == 503:
            await asyncio.sleep(0.05)
    assert (await served.chat(headers=bearer(issuer.token()))).status == 200
    told = [record.message for record in caplog.records if "the keys of" in record.message]
    assert len(told) == 2  # not once for each attempt
    assert "no token is admitted: it cannot be reached" in told[0]
    assert "were fetched again" in told[1]


async def test_what_cannot_be_fetched_leaves_the_keys_as_they_were(soon, served, issuer, caplog):
    good = issuer.token()
    assert (await served.chat(headers=bearer(good))).status == 200

    async def oversized(request):
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b" " * 65536)
        except ConnectionError:
            return response

    followed = []

    async def elsewhere(request):
        followed.extend(request.query)
        raise web.HTTPFound(f"{issuer.url}/keys?followed")

    async def failing(_):
        return web.Response(status=500)

    async def page(_):
        return web.Response(text="<html>sign in</html>")

    async def squeezed(_):
        response = web.json_response({"keys": []})
        response.enable_compression(web.ContentCoding.gzip)
        response.headers["content-encoding"] = "gzip"
        return response

    for number, answer in enumerate((oversized, elsewhere, failing, page, squeezed)):
        issuer.answer = answer
        issuer.asked_once_more.clear()
        async with asyncio.timeout(LIMIT_S):
            while not issuer.asked_once_more.is_set():
                unknown = issuer.token(header={"kid": f"k{number}"})
                assert (await code(served, unknown))[0] == "invalid_token"
        assert (await served.chat(headers=bearer(good))).status == 200
    assert followed == []
    [told] = [
        record.message for record in caplog.records if "cannot fetch the keys" in record.message
    ]
    assert "the last ones remain in use: its document is larger than 65536 bytes" in told


async def test_a_silent_issuer_holds_a_call_for_as_long_as_a_fetch_may_take(
    kairos, standin, issuer, monkeypatch
):
    monkeypatch.setattr(jwks, "FETCH_S", 0.2)

    async def silent(_):
        await asyncio.sleep(60)

    issuer.answer = silent
    served = await kairos(standin.url, oidc=oidc(issuer))
    (await served.chat(headers=bearer(issuer.token()))).is_refused(503, "issuer_unreachable")


async def test_a_client_that_leaves_while_keys_are_fetched_leaves_nothing_behind(
    soon, served, issuer
):
    assert (await served.chat(headers=bearer(issuer.token()))).status == 200
    asked, released = asyncio.Event(), asyncio.Event()

    async def slow(_):
        asked.set()
        await released.wait()
        return web.json_response({"keys": [issuer.keys[0].as_dict(private=False)]})

    issuer.answer = slow
    await soon()
    wire = await served.connect()
    token = issuer.token(header={"kid": "new"})
    body = {"model": "tiny", "messages": MESSAGES}
    await wire.post("/v1/chat/completions", body, f"Authorization: Bearer {token}")
    async with asyncio.timeout(LIMIT_S):
        await asked.wait()
    wire.leave()
    other = asyncio.create_task(served.chat(headers=bearer(token)))
    await turns(100)
    assert not other.done()
    released.set()
    assert (await other).status == 401
    assert len(served.facts.all(Arrived)) == 1


@pytest.mark.parametrize(
    ("discovery", "why"),
    [
        ({"issuer": "https://other.example"}, "is not of this issuer"),
        ({"jwks_uri": "http://keys.example/keys"}, "no 'jwks_uri' that begins with https://"),
        ({"jwks_uri": None}, "no 'jwks_uri' that begins with https://"),
        ({"jwks_uri": "file:///etc/passwd"}, "no 'jwks_uri' that begins with https://"),
    ],
    ids=str,
)
async def test_keys_come_from_where_the_issuer_itself_says_and_nowhere_else(
    kairos, standin, issuer, caplog, discovery, why
):
    issuer.discovery = discovery
    served = await kairos(standin.url, oidc=oidc(issuer))
    assert (await code(served, issuer.token(), 503))[0] == "issuer_unreachable"
    assert any(why in record.message for record in caplog.records)
    assert issuer.asked == 0


async def test_keys_can_be_named_without_discovery(kairos, standin, issuer):
    issuer.discovery = {"issuer": "https://other.example"}
    served = await kairos(standin.url, oidc=oidc(issuer, jwks_url=f"{issuer.url}/keys"))
    assert (await served.chat(headers=bearer(issuer.token()))).status == 200


async def test_another_issuer_needs_a_restart_and_keys_need_none(kairos, standin, issuer, caplog):
    caplog.set_level(logging.INFO)
    from kairos.settings import EngineSettings, Settings

    served = await kairos(standin.url, oidc=oidc(issuer))
    told = Settings(
        engine=(EngineSettings(url=standin.url),),
        port=0,
        admin_port=0,
        allowed_hosts=NAMES,
        key=(key("kai-1", "umbrella"),),
        oidc=oidc(issuer, leeway_s=7),
    )
    served.service.reload(lambda: told)
    assert "needs a restart, and stays as it was: oidc" in caplog.messages
    assert (await served.chat(headers=bearer("kai-1"))).status == 200
    assert (await served.chat(headers=bearer(issuer.token()))).status == 200
