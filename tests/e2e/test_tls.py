"""TLS on both ports of a running Kairos, with real clients, real processes and a flood."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import aiohttp
import openai
import pytest

from kairos.settings import TlsFiles, client_context
from tests.support.certificates import Authority
from tests.support.cli.command import main
from tests.support.processes import Process

MESSAGES = [{"role": "user", "content": "Hello there"}]
BODY = {"model": "tiny", "messages": MESSAGES}
CHAT = "/v1/chat/completions"
REFUSED = (aiohttp.ClientConnectionError, ssl.SSLError)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def trusting(authority):
    return client_context(TlsFiles(ca=authority.ca))


def pair(files):
    return {"tls_certificate": files.certificate, "tls_key": files.key}


def client_of(kairos, context):
    return openai.AsyncOpenAI(
        base_url=f"{kairos.url}/v1",
        api_key="any",
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(verify=context),
    )


@pytest.fixture
async def served(kairos, standin, authority):
    return await kairos(standin.url, **pair(authority.issue()))


async def test_calls_are_answered_whole_and_streamed(served, trusting):
    assert served.url.startswith("https://127.0.0.1:")
    async with client_of(served, trusting) as client:
        for _ in range(2):
            answer = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, max_tokens=5
            )
            assert answer.usage.completion_tokens == 5
            stream = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, max_tokens=5, stream=True
            )
            chunks = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert len("".join(chunks).split()) == 5
        assert [model.id async for model in await client.models.list()] == ["tiny"]


BY_OPENAI = """
import sys, openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="any", max_retries=0)
print([model.id for model in client.models.list()])
"""
BY_KAIROS = """
import asyncio, sys
from kairos.proxy.llm.http_llm import HttpLLM

async def ask():
    async with HttpLLM(sys.argv[1]) as llm:
        print(await llm.models())

asyncio.run(ask())
"""


@pytest.mark.parametrize("program", [BY_OPENAI, BY_KAIROS])
async def test_clients_heed_the_authority_in_the_environment(served, authority, program):
    command = [sys.executable, "-c", program, f"{served.url}/v1"]
    for more, says in (({}, ""), ({"SSL_CERT_FILE": authority.ca}, "['tiny']\n")):
        done = await asyncio.to_thread(
            subprocess.run, command, env=os.environ | more, capture_output=True, text=True
        )
        assert done.stdout == says, done.stderr
        assert (done.returncode == 0) == bool(says)


async def test_a_client_without_the_authority_does_not_connect(served):
    async with client_of(served, True) as client:
        with pytest.raises(openai.APIConnectionError):
            await client.models.list()


async def test_operators_show_certificates_where_callers_need_none(
    kairos, standin, authority, trusting, caplog
):
    served = await kairos(standin.url, **pair(authority.issue()), admin_tls_client_ca=authority.ca)
    assert (await served.ask("GET", "/health", ssl=trusting)).status == 200
    with pytest.raises(REFUSED):
        await served.operate("GET", "status", ssl=trusting)
    assert "a handshake failed at the operators' port" in caplog.text
    own = authority.issue("operator")
    shown = client_context(TlsFiles(own.certificate, own.key, authority.ca))
    assert (await served.operate("GET", "status", ssl=shown)).status == 200


async def test_handshakes_that_never_end_keep_no_other_out(kairos, standin, authority, trusting):
    """All of one address, more than it may have at once; some say half of a hello."""
    served = await kairos(standin.url, **pair(authority.issue()), max_connections=64)
    host, port = served.url.removeprefix("https://").split(":")
    async with contextlib.AsyncExitStack() as stack:
        for number in range(100):
            sock = socket.create_connection((host, int(port)), 10, ("127.0.0.2", 0))
            stack.enter_context(sock)
            if number % 2:
                with contextlib.suppress(ConnectionError):  # beyond its share
                    sock.send(b"\x16\x03\x01\x02\x00\x01")
        async with client_of(served, trusting) as client:
            for _ in range(3):
                answer = await client.chat.completions.create(
                    model="tiny", messages=MESSAGES, max_tokens=2
                )
                assert answer.usage.completion_tokens == 2


# Processes


def certificate_at(port):
    """Of the certificate that is shown."""
    with (
        socket.create_connection(("127.0.0.1", port), 10) as sock,
        _trusting_all().wrap_socket(sock, server_hostname="localhost") as tls,
    ):
        return tls.getpeercert(binary_form=True)


def shown_at(ports):
    """By all of the processes behind them, most likely: the kernel chooses one for each."""
    return {certificate_at(port) for port in ports for _ in range(12)}


def _trusting_all():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def shown_in(path):
    return ssl.PEM_cert_to_DER_cert(Path(path).read_text())


async def until(condition):
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.1)


@pytest.fixture
async def serve(tmp_path, standin):
    """`await serve(*options)` starts a `kairos serve`, and gives it with its two ports."""
    with contextlib.ExitStack() as stack:

        async def start(*arguments):
            process = stack.enter_context(
                Process(
                    tmp_path, "kairos", "serve", "--engine", standin.url,
                    *("--port", "0", "--admin-port", "0"), *arguments,
                )
            )  # fmt: skip
            await process.until_it_says("operators' routes on")
            ports = re.findall(r"https://127\.0\.0\.1:(\d+)", process.said)
            return process, *map(int, ports)

        yield start


@pytest.mark.parametrize("workers", [0, 2])
async def test_a_new_certificate_is_shown_at_both_ports_and_a_broken_one_never(
    serve, authority, workers
):
    files = authority.issue()
    options = ["--tls-certificate", files.certificate, "--tls-key", files.key]
    process, *ports = await serve(*options, "--workers", str(workers))
    first = shown_in(files.certificate)
    assert await asyncio.to_thread(shown_at, ports) == {first}

    authority.issue()
    second = shown_in(files.certificate)
    await until(lambda: shown_at(ports) == {second})
    assert "TLS uses what was read of" in process.said

    Path(files.certificate).write_text("no certificate")
    await until(lambda: certificate_at(ports[0]) and "keeps the last valid files" in process.said)
    assert await asyncio.to_thread(shown_at, ports) == {second}
    os.kill(process.pid, signal.SIGHUP)
    await process.until_it_says("the settings stay as they are: ")
    assert await asyncio.to_thread(shown_at, ports) == {second}

    authority.issue()
    os.kill(process.pid, signal.SIGHUP)
    await process.until_it_says("the settings were read again")
    third = shown_in(files.certificate)
    await until(lambda: shown_at(ports) == {third})
    assert process.stop() == 0


@pytest.mark.parametrize("workers", [0, 2])
async def test_a_hangup_alone_has_files_read_again_and_others_named(
    serve, authority, standin, tmp_path, monkeypatch, workers
):
    files, other = authority.issue(), authority.issue("other")
    settings = tmp_path / "kairos.toml"
    settings.write_text(f'tls_certificate = "{files.certificate}"\ntls_key = "{files.key}"\n')
    process, *ports = await serve("--config", str(settings), "--workers", str(workers))
    settings.write_text(
        f'tls_certificate = "{other.certificate}"\ntls_key = "{other.key}"\n'
        f'tls_client_ca = "{authority.ca}"\n'
    )
    os.kill(process.pid, signal.SIGHUP)
    await process.until_it_says("changed: tls_certificate, tls_key, tls_client_ca")
    shown = client_context(TlsFiles(files.certificate, files.key, authority.ca))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:

        async def asked(port, context):
            path = "/health" if port == ports[0] else "/admin/status"
            async with session.get(f"https://127.0.0.1:{port}{path}", ssl=context) as response:
                return response.status

        async with asyncio.timeout(60):
            for port in ports:
                while await asyncio.to_thread(_is_shown, port) != shown_in(other.certificate):
                    await asyncio.sleep(0.1)
                assert await asked(port, shown) == 200
                with pytest.raises(REFUSED):
                    await asked(port, client_context(TlsFiles(ca=authority.ca)))
    assert process.stop() == 0


def _is_shown(port):
    with contextlib.suppress(OSError):
        return certificate_at(port)
    return None


async def test_tls_begins_and_ends_with_a_start(serve, authority, tmp_path):
    files = authority.issue()
    settings = tmp_path / "kairos.toml"
    settings.write_text(f'tls_certificate = "{files.certificate}"\ntls_key = "{files.key}"\n')
    process, *ports = await serve("--config", str(settings))
    settings.write_text("")
    os.kill(process.pid, signal.SIGHUP)
    await process.until_it_says("keeps TLS until the next restart")
    assert await asyncio.to_thread(certificate_at, ports[0]) == shown_in(files.certificate)


def test_files_of_no_use_are_told_at_the_start(authority, monkeypatch):
    files, other = authority.issue(), authority.issue("other")
    command = ["kairos", "serve", "--engine", "http://127.0.0.1:9"]
    options = ["--tls-certificate", files.certificate, "--tls-key", other.key]
    monkeypatch.setattr(sys, "argv", command + options)
    with pytest.raises(SystemExit) as ended:
        main()
    assert "other.key: the key is not that of the certificate in" in str(ended.value.code)
