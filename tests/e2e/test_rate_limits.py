"""Clients are told what is left of their quotas, whichever process decides."""
# ruff: noqa: F811 - fixtures that are imported

import asyncio
import signal

import openai
import pytest
from msgspec.structs import replace

from kairos.core import Arrived, EntitlementsChanged
from tests.e2e.batch_files import key
from tests.e2e.cluster.test_pool import Pool, stack  # noqa: F401 - a fixture
from tests.e2e.test_workers import decider_of, serve  # noqa: F401 - a fixture
from tests.support.settings.quotas import QuotaSettings, ServiceClassSettings
from tests.support.waiting import until

ACME, BELL = key("acme"), key("bell")
QUOTA = QuotaSettings(tenant="acme", calls_per_minute=2, tokens_per_minute=60_000)
AUTHORIZATION = {"Authorization": "Bearer acme"}
FILE = f"""
[[key]]
sha256 = "{ACME.sha256}"
tenant = "acme"

[[quota]]
tenant = "acme"
calls_per_minute = 2
tokens_per_minute = 60_000
"""


def of(headers):
    return {
        name.lower().removeprefix("x-ratelimit-"): value
        for name, value in headers.items()
        if name.lower().startswith("x-ratelimit-")
    }


async def create(url, key="acme", **fields):
    """What OpenAI's own client sees of the headers, and of an error."""
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 9}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        try:
            raw = await client.chat.completions.with_raw_response.create(**asked, **fields)
        except openai.RateLimitError as error:
            return of(error.response.headers), error.response.headers["retry-after"]
        if fields.get("stream"):
            async for _ in raw.parse():
                pass
        return of(raw.headers), None


async def check(url):
    """Two calls, and one too many."""
    first, _ = await create(url)
    assert (first["limit-requests"], first["remaining-requests"]) == ("2", "1")
    assert first["limit-tokens"] == "60000"
    assert 59_900 < int(first["remaining-tokens"]) < 60_000
    assert 29 < float(first["reset-requests"].removesuffix("s")) <= 30
    assert first["reset-tokens"].endswith("ms")
    await create(url)
    refused, after_s = await create(url)
    assert (refused["remaining-requests"], refused["limit-requests"]) == ("0", "2")
    assert refused["reset-requests"].startswith("5") or refused["reset-requests"] == "1m0s"
    assert 1 <= int(after_s) <= 30


async def test_openais_client_sees_what_is_left_in_answers_and_refusals(kairos, standin):
    served = await kairos(standin.url, key=(ACME,), quota=(QUOTA,))
    await check(served.url)


async def test_a_stream_says_it_at_its_beginning_and_an_error_of_the_engine_too(kairos, standin):
    served = await kairos(standin.url, key=(ACME,), quota=(QUOTA,))
    headers, _ = await create(served.url, stream=True)
    assert headers["remaining-requests"] == "1"
    wrong = {"model": "tiny", "messages": [], "max_tokens": 90_000}
    answer = await served.ask("POST", "/v1/chat/completions", json=wrong, headers=AUTHORIZATION)
    assert (answer.status, of(answer.headers)["remaining-requests"]) == (400, "0")


async def test_who_has_no_quota_is_told_of_none(kairos, standin):
    served = await kairos(standin.url, key=(ACME, BELL), quota=(QUOTA,))
    assert await create(served.url, "bell") == ({}, None)


async def test_a_key_that_has_a_name_has_a_quota_of_its_own(kairos, standin):
    named = key("ci", "acme", name="ci")
    quota = QuotaSettings(tenant="acme", key="ci", calls_per_minute=1)
    served = await kairos(standin.url, key=(ACME, named), quota=(quota,))
    first, _ = await create(served.url, "ci")
    assert first["remaining-requests"] == "0"
    _, after_s = await create(served.url, "ci")
    assert 58 <= int(after_s) <= 60
    assert await create(served.url) == ({}, None)
    assert {fact.request.key for fact in served.facts.all(Arrived)} == {"ci", None}


async def test_several_processes_on_one_host_count_together(serve, standin, tmp_path):
    (tmp_path / "settings").mkdir()
    file = tmp_path / "settings" / "kairos.toml"
    file.write_text(FILE)
    served = await serve("--engine", standin.url, "--config", str(file))
    await check(served.url)
    answers = await asyncio.gather(*(served.ask(headers=AUTHORIZATION) for _ in range(8)))
    assert {status for status, _ in answers} == {429}


@pytest.mark.kafka
async def test_the_gateways_of_a_pool_count_together(kafka, standin, tmp_path, stack):
    pool = Pool(kafka, standin, tmp_path, stack)
    given = {"key": (ACME,), "quota": (QUOTA,)}
    one, other = await pool.gateway(**given), await pool.gateway(**given)
    await until(lambda: one.brain.member.active or other.brain.member.active)
    active, standby = (one, other) if one.brain.member.active else (other, one)
    await check(standby.url)
    refused, _ = await create(active.url)
    assert refused["remaining-requests"] == "0"


MORE = QuotaSettings(tenant="acme", calls_per_minute=5)  # one comes back after twelve seconds


async def test_other_quotas_and_classes_hold_as_soon_as_the_settings_are_read_again(
    kairos, standin
):
    served = await kairos(standin.url, key=(ACME,), quota=(QUOTA,))
    await create(served.url)
    await create(served.url)
    _, after_s = await create(served.url)
    assert after_s is not None
    urgent = ServiceClassSettings(name="urgent", goes="first")
    told = replace(served.service.reload._in_force, quota=(MORE,), service_class=(urgent,))
    served.service.reload(lambda: told)
    headers, after_s = await create(served.url, extra_headers={"X-Kairos-Class": "urgent"})
    assert (after_s, headers["limit-requests"], headers["remaining-requests"]) == (None, "5", "2")
    assert "limit-tokens" not in headers
    served.service.reload(lambda: told)
    assert len(served.facts.all(EntitlementsChanged)) == 1


async def test_other_quotas_reach_the_process_that_decides_and_the_one_after_it(
    serve, standin, tmp_path
):
    (tmp_path / "settings").mkdir()
    file = tmp_path / "settings" / "kairos.toml"
    file.write_text(FILE)
    served = await serve("--engine", standin.url, "--config", str(file))
    await create(served.url)
    file.write_text(FILE.replace("calls_per_minute = 2", "calls_per_minute = 3"))
    served.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(60):
        while (await create(served.url))[0]["limit-requests"] != "3":
            await asyncio.sleep(0.05)
    await served.replaced(decider_of(served))
    await served.joined()
    headers, _ = await create(served.url)
    assert headers["limit-requests"] == "3"


@pytest.mark.kafka
async def test_other_quotas_reach_a_pool(kafka, standin, tmp_path, stack):
    pool = Pool(kafka, standin, tmp_path, stack)
    given = {"key": (ACME,), "quota": (QUOTA,)}
    one, other = await pool.gateway(**given), await pool.gateway(**given)
    members = one.brain.member, other.brain.member
    await until(lambda: any(each.active and each._backlog is None for each in members))
    assert (await create(one.url))[0]["limit-requests"] == "2"
    told = replace(one.reload._in_force, quota=(MORE,))
    for each in (one, other):
        each.reload(lambda: told)
    assert (await create(one.url))[0]["limit-requests"] == "5"
    assert (await create(other.url))[0]["remaining-requests"] == "2"


@pytest.mark.kafka
async def test_whoever_decides_next_does_by_its_own_settings(kafka, standin, tmp_path, stack):
    pool, file = Pool(kafka, standin, tmp_path, stack), tmp_path / "kairos.toml"
    file.write_text(FILE)
    balancer = await pool.process("balance", "--port", "0", "--config", str(file))
    await balancer.until_it_says("this process decides")
    gateway = await pool.gateway(key=(ACME,), quota=(QUOTA,))
    gateway.reload(lambda: replace(gateway.reload._in_force, quota=(MORE,)))
    assert (await create(gateway.url))[0]["limit-requests"] == "2"
    await asyncio.to_thread(balancer.stop)
    await until(lambda: gateway.brain.member.active is not None)
    assert (await create(gateway.url))[0]["limit-requests"] == "5"
