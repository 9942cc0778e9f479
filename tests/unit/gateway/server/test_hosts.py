"""The operators' routes are asked by addresses and known names, and no web page's name is one."""

import json

import pytest

from kairos.gateway import Access
from kairos.gateway.operators.operators import Operators

NAMES = ("kairos.internal", "GPU1", "127.0.0.1", "::1")


async def status(*hosts, names=NAMES):
    """What a request with these Host headers is answered, and its error."""
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    headers = [(b"accept", b"*/*"), *((b"host", host) for host in hosts)]
    asked = {"method": "GET", "raw_path": b"/admin/status", "client": None, "headers": headers}
    await Operators(app, Access(()), names)(asked, None, send)
    body = sent[1]["body"] if len(sent) > 1 else b"{}"
    assert [each["type"] for each in sent].count("http.response.start") == 1
    return sent[0]["status"], json.loads(body).get("error", {})


@pytest.mark.parametrize(
    "host",
    [
        b"localhost",
        b"LOCALHOST:8001",
        b"localhost.",
        b"a.localhost:8001",
        b"127.0.0.1",
        b"127.0.0.1:8001",
        b"127.1.2.3:1",
        b"[::1]",
        b"[::1]:8001",
        b"10.0.3.7:8003",
        b"203.0.113.9",
        b"[2001:db8::7]:8001",
        b"kairos.internal",
        b"Kairos.Internal.:8001",
        b"gpu1:80",
    ],
)
async def test_addresses_and_names_of_this_machine_or_in_the_settings_are_known(host):
    assert (await status(host))[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example",
        b"evil.example:8001",
        b"127.0.0.1.evil.example",
        b"localhost.evil.example",
        b"evillocalhost",
        b"x.kairos.internal",
        b"kairos.internal.evil.example",
        b"0x7f000001",
        b"2130706433",
        b"[evil.example]:8001",
        b"",
        b":8001",
        b"\xff",
        b"127.0.0.1@evil.example",
        b"evil.example, 127.0.0.1",
    ],
)
async def test_any_other_name_is_refused_and_told_which_setting_would_let_it_in(host):
    answered, error = await status(host)

    assert (answered, error["code"]) == (421, "unknown_host")
    assert "admin_hosts" in error["message"]


async def test_each_of_several_hosts_must_be_known():
    assert (await status(b"localhost", b"evil.example"))[0] == 421


async def test_no_browser_leaves_the_name_out():
    assert (await status())[0] == 200


async def test_a_long_name_is_not_repeated_at_length():
    _, error = await status(b"x" * 60_000)

    assert len(error["message"]) < 300
