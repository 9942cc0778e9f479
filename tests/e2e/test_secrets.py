"""Keys and the bodies of calls are written down nowhere, whatever becomes of a call."""

import asyncio
import json
from datetime import UTC, datetime

from aiohttp import web

from tests.e2e.batch_files import key
from tests.e2e.served import serving

CHAT = "/v1/chat/completions"
CLIENTS_KEY, UNKNOWN_KEY, ENGINES_KEY = "client-7c1d", "unknown-9a2f", "engine-b3e8"
EXPIRED_KEY = "expired-40cc"
BODY = "body-5f60"
KEYS = (
    key(CLIENTS_KEY, "acme"),
    key(EXPIRED_KEY, "acme", expires=datetime(2026, 1, 1, tzinfo=UTC)),
)


async def test_keys_and_bodies_are_in_no_log(engine, tmp_path, monkeypatch, caplog, capfd):
    caplog.set_level("DEBUG")
    monkeypatch.setenv("ENGINE_KEY", ENGINES_KEY)
    settings = {"key": KEYS, "api_key_env": "ENGINE_KEY", "log_dir": str(tmp_path)}
    limits = {"max_body_bytes": 10_000, "kv_tokens": 1_000}
    async with serving(engine.url, **settings, **limits) as served:
        refused = [await call for call in refusals(served)]
        others = [await each(served, engine) for each in (whole, streamed, failing, moved, cut)]
        await engine.stop()
        others.append(await ask(served))
        await served.settled()

    assert [answer.status for answer in refused] == [401, 401, 400, 400, 400, 413, 413, 415, 404]
    assert [answer.status for answer in others] == [200, 200, 500, 502, 503, 503]
    facts = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "writer" in facts, "there is something to look into"
    logged = facts + caplog.text + "".join(capfd.readouterr())
    assert BODY not in logged
    assert BODY not in "".join(str(answer.error()) for answer in refused)
    told = "".join(f"{answer.headers}{answer.body}" for answer in refused + others)
    for each in (CLIENTS_KEY, UNKNOWN_KEY, EXPIRED_KEY, ENGINES_KEY):
        assert each not in logged + told


def refusals(served):
    """Calls that no engine sees."""
    half = json.dumps({"messages": [BODY]})[:-1]
    yield ask(served, key=UNKNOWN_KEY)
    yield ask(served, key=EXPIRED_KEY)
    yield served.ask("POST", CHAT, data=half, headers={"Authorization": f"Bearer {CLIENTS_KEY}"})
    yield ask(served, max_tokens=BODY)
    yield ask(served, headers={"X-Kairos-Agent": f"of {CLIENTS_KEY}"})
    yield ask(served, messages=[{"role": "user", "content": [BODY]}] * 5_000)
    yield ask(served, content=BODY * 2_000)
    yield ask(served, headers={"Content-Encoding": "br"})
    yield ask(served, model="another")


async def whole(served, engine):
    return await ask(served)


async def streamed(served, engine):
    done = b"data: [DONE]\n\n"
    engine.answer = engine.stream(b'data: {"error":{"message":"%s"}}\n\n' % BODY.encode(), done)
    engine.release(2)
    return await ask(served, stream=True)


async def failing(served, engine):
    engine.answer = lambda _: asyncio.sleep(
        0, web.json_response({"error": {"message": BODY}}, status=500)
    )
    return await ask(served)


async def moved(served, engine):
    elsewhere = {"Location": f"http://127.0.0.1/{BODY}"}
    engine.answer = lambda _: asyncio.sleep(0, web.Response(status=307, headers=elsewhere))
    return await ask(served)


async def cut(served, engine):
    """Before any answer."""
    engine.answer = engine.stream(then=lambda transport: transport.abort())
    engine.release()
    return await ask(served, stream=True)


async def ask(served, *, key=CLIENTS_KEY, content=BODY, headers=None, **fields):
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], **fields}
    named = {"Authorization": f"Bearer {key}", "X-Kairos-Agent": "writer"}
    return await served.ask("POST", CHAT, json=body, headers=named | (headers or {}))
