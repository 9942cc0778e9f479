"""Proxies in front of Kairos, and ab, which speaks HTTP/1.0."""

import asyncio
import contextlib
import json
import re
import shutil

import aiohttp
import pytest

from kairos.host import start_child
from tests.e2e.client import LIMIT_S
from tests.e2e.test_http_clients import ASKED, CALLS, CHAT, JSON, echo, output_of, read, right
from tests.support.ports import free_ports

pytestmark = pytest.mark.long

NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log stderr;
events {{ }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/a; uwsgi_temp_path {folder}/b; scgi_temp_path {folder}/c;
  upstream kairos {{ server {address}; {kept} }}
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://kairos; {lines} }} }}
}}
"""
KEPT = 'proxy_http_version 1.1; proxy_set_header Connection "";'
WEBSOCKET_READY = (
    "proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade;"
    'proxy_set_header Connection "upgrade";'
)
HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  {lines}
listen front
  bind 127.0.0.1:{port}
  server kairos {address} {kept}
"""
PROXIES = {
    "nginx as it is": ("nginx", NGINX, {"lines": "", "kept": ""}),
    "nginx, kept connections": ("nginx", NGINX, {"lines": KEPT, "kept": "keepalive 8;"}),
    "nginx, unbuffered": ("nginx", NGINX, {"lines": "proxy_request_buffering off;", "kept": ""}),
    "nginx for WebSockets": ("nginx", NGINX, {"lines": WEBSOCKET_READY, "kept": ""}),
    "haproxy as it is": ("haproxy", HAPROXY, {"lines": "", "kept": ""}),
    "haproxy, closing": ("haproxy", HAPROXY, {"lines": "option httpclose", "kept": ""}),
    "haproxy, HEAD probes": (
        *("haproxy", HAPROXY),
        {"lines": "option httpchk HEAD /health", "kept": "check inter 100ms"},
    ),
    "haproxy, OPTIONS probes": (
        *("haproxy", HAPROXY),
        {"lines": "option httpchk", "kept": "check inter 100ms"},
    ),
}
COMMANDS = {"nginx": ("nginx", "-e", "stderr", "-c"), "haproxy": ("haproxy", "-db", "-f")}


@contextlib.asynccontextmanager
async def before(url, which, folder):
    """Run the proxy before Kairos, and yield its URL."""
    program, text, values = PROXIES[which]
    if (found := shutil.which(program)) is None:
        pytest.skip(f"{program} is not installed")
    [port] = free_ports(1)
    settings = folder / "settings"
    address = url.removeprefix("http://")
    settings.write_text(text.format(folder=folder, port=port, address=address, **values))
    command = found, *COMMANDS[program][1:], str(settings)
    process = await start_child(*command)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def is_up(session, url):
    with contextlib.suppress(aiohttp.ClientError):
        async with session.get(f"{url}/health") as answer:
            return answer.status == 200
    return False


@pytest.mark.parametrize("which", PROXIES)
async def test_calls_through_a_proxy_are_answered_as_without(served, engine, tmp_path, which):
    engine.answer = echo
    async with (
        before(served.url, which, tmp_path) as url,
        aiohttp.ClientSession() as session,
        asyncio.timeout(LIMIT_S),
    ):
        while not await is_up(session, url):
            await asyncio.sleep(0.05)
        for _ in range(3):
            for call, (path, kind, body) in CALLS.items():
                headers = {"Content-Type": kind}
                async with session.post(url + path, data=body, headers=headers) as answer:
                    assert answer.status == 200, call
                    assert read(call, await answer.read()) == right(call)


@pytest.mark.parametrize("options", [(), ("-k",)], ids=["closing", "keep-alive"])
async def test_ab_gets_each_of_its_answers(kairos, engine, tmp_path, options):
    if shutil.which("ab") is None:
        pytest.skip("ab is not installed")
    engine.answer = echo
    served = await kairos(engine.url)
    for asked in (ASKED, ASKED | {"stream": True}):
        sent = tmp_path / "body"
        sent.write_text(json.dumps(asked))
        command = "ab", "-q", *options, "-n", "40", "-c", "4", "-T", JSON, "-p", str(sent)
        said = (await output_of(*command, served.url + CHAT)).decode()
        assert re.search(r"Complete requests: +40\n", said)
        assert not re.search(r"Non-2xx|Failed requests: +[1-9].*\n.*Connect: [1-9]", said)
