"""Engines that speak TLS, some to those alone who show a certificate."""

import asyncio
import logging
import re
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from kairos.core import Finished, InstanceLeft, SetupError
from kairos.host import fresh_context
from kairos.settings import EngineSettings, TlsFiles, load_settings, parse_engine, server_context
from tests.e2e.engine import Engine
from tests.support.certificates import Authority
from tests.support.processes import Process
from tests.support.waiting import until

CHUNK = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
async def secure(authority):
    """`await secure()` starts an engine that speaks TLS. `shown`: of the certificates that come."""
    async with AsyncExitStack() as stack:

        async def start(*, asks=False, names=("localhost", "127.0.0.1"), of=authority):
            files = of.issue("engine", names)
            context = server_context(
                TlsFiles(files.certificate, files.key, authority.ca if asks else None)
            )
            engine = Engine()
            engine.shown, probe = [], engine.probe

            async def looking(request):
                tls = request.transport.get_extra_info("ssl_object")
                engine.shown.append(tls.getpeercert(binary_form=True))
                return await probe(request)

            engine.probe = looking
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", engine.handle)
            runner = web.AppRunner(
                app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01
            )
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
            engine.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
            return engine

        yield start


def shows(files):
    return {"client_certificate": files.certificate, "client_key": files.key}


def der(path):
    return ssl.PEM_cert_to_DER_cert(Path(path).read_text())


async def problem_of(served, says):
    async with asyncio.timeout(60):
        while True:
            told = (await served.operate("GET", "status")).json()["not_in_use"]
            if any(says in why for why in told.values()):
                return
            await asyncio.sleep(0.05)


async def test_calls_are_answered_whole_and_streamed(kairos, secure, authority):
    engine = await secure()
    served = await kairos(engine.url, ca=authority.ca)
    for number in range(3):
        assert (await served.chat()).json()["number"] == number + 1
    engine.answer = engine.stream(CHUNK, CHUNK, DONE)
    asking = asyncio.create_task(served.chat(stream=True))
    engine.release(3)
    assert (await asking).body.count(CHUNK) == 2
    await served.facts.seen(Finished, 4)


async def test_an_engine_that_asks_for_a_certificate_is_shown_one(kairos, secure, authority):
    engine = await secure(asks=True)
    own = authority.issue("kairos")
    served = await kairos(engine.url, ca=authority.ca, **shows(own))
    assert (await served.chat()).status == 200
    assert set(engine.shown) == {der(own.certificate)}


async def test_one_that_asks_in_vain_gets_no_calls_and_operators_see_why(kairos, secure, authority):
    engine = await secure(asks=True)
    served = await kairos(engine.url, joins=0, ca=authority.ca)
    await problem_of(served, "")
    (await served.chat()).is_to_be_retried("no_instance")
    assert engine.calls == []


@pytest.mark.parametrize(
    ("names", "is_strange", "says"),
    [
        (("elsewhere.example",), False, "its certificate is not accepted: IP address mismatch"),
        (("127.0.0.1",), True, "its certificate is not accepted: "),
    ],
)
async def test_a_certificate_for_another_name_or_of_another_authority_is_not_accepted(
    kairos, secure, authority, tmp_path, names, is_strange, says
):
    of = Authority(tmp_path, "stranger") if is_strange else authority
    engine = await secure(names=names, of=of)
    served = await kairos(engine.url, joins=0, ca=authority.ca)
    await problem_of(served, says)
    assert engine.probes == engine.calls == []


async def test_without_a_named_authority_those_of_the_system_count(kairos, secure):
    engine = await secure()
    served = await kairos(engine.url, joins=0)
    await problem_of(served, "its certificate is not accepted: unable to get local issuer")
    assert engine.calls == []


async def test_a_new_certificate_is_shown_from_the_next_connection_on(
    kairos, secure, authority, monkeypatch
):
    monkeypatch.setattr(fresh_context, "LOOK_S", 0.0)
    engine = await secure(asks=True)
    own = authority.issue("kairos")
    served = await kairos(engine.url, ca=authority.ca, **shows(own))
    first = der(own.certificate)
    authority.issue("kairos")
    second = der(own.certificate)
    await until(lambda: engine.shown[-1] == second)
    assert set(engine.shown) == {first, second}
    assert (await served.chat()).status == 200


async def test_files_that_break_later_leave_engines_in_use(
    kairos, secure, authority, monkeypatch, caplog
):
    monkeypatch.setattr(fresh_context, "LOOK_S", 0.0)
    engine = await secure(asks=True)
    own = authority.issue("kairos")
    served = await kairos(engine.url, ca=authority.ca, **shows(own))
    Path(own.key).write_text("no key")
    for _ in range(3):
        assert (await served.chat()).status == 200
    assert served.facts.all(InstanceLeft) == []
    [told] = {r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR}
    assert told.startswith("connections to engines: TLS keeps the last valid files")
    caplog.clear()  # else the fixture takes it for an error of Kairos's


async def test_files_that_the_settings_do_not_name_cannot_come_over_the_operators_port(
    kairos, secure, authority
):
    first, second = await secure(), await secure()
    served = await kairos(first.url, ca=authority.ca)
    asked = {"url": second.url, "ca": authority.ca}
    for more in ({"ca": "/etc/passwd"}, shows(authority.issue("kairos"))):
        refused = await served.operate("POST", "instances", json=asked | more)
        assert (refused.status, refused.error()["code"]) == (400, "tls_files_not_named")
    assert (await served.operate("POST", "instances", json=asked)).status == 201
    await until(lambda: second.shown)


async def test_workers_show_the_certificate_too(secure, authority, tmp_path):
    engine, own = await secure(asks=True), authority.issue("kairos")
    files = f"ca={authority.ca},client_certificate={own.certificate},client_key={own.key}"
    command = ["serve", "--engine", f"{engine.url},{files}", "--workers", "2"]
    with Process(tmp_path, "kairos", *command, "--port", "0", "--admin-port", "0") as process:
        await process.until_it_says("operators' routes on")
        url = re.search(r"serving on (\S+)/v1", process.said)[1]
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
        async with aiohttp.ClientSession() as session, asyncio.timeout(60):
            status = None
            while status != 200:  # until the engine has joined
                async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                    status = response.status
                await asyncio.sleep(0.1)
        assert process.stop() == 0
    assert set(engine.shown) == {der(own.certificate)}


# Settings


def test_the_command_line_names_files_of_an_engine():
    told = "https://a:1,ca=/x y/ca.pem,client_certificate=c.pem,client_key=k.pem,kv_tokens=5"
    assert parse_engine(told) == EngineSettings(
        url="https://a:1",
        ca="/x y/ca.pem",
        client_certificate="c.pem",
        client_key="k.pem",
        kv_tokens=5,
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"url": "http://a:1", "ca": "ca.pem"},
            "engine a:1: ca, client_certificate and client_key",
        ),
        ({"client_key": "k.pem"}, "engine a:1: client_key needs client_certificate"),
        ({"client_certificate": "c.pem"}, "engine a:1: client_certificate needs client_key"),
        ({"ca": "none.pem"}, "none.pem: cannot be read"),
    ],
)
def test_files_of_no_use_are_refused(given, says):
    engine = EngineSettings(**({"url": "https://a:1"} | given))
    with pytest.raises(SetupError, match=says):
        load_settings(None, {}, {"engine": (engine,)})
