"""Imports of a serving process: modules that calls need, and none that only other routes need."""

import json
import subprocess
import sys

import pytest

# What only operators' routes, or settings that are not given, need.
LATE = {
    *(
        "aiohttp",
        "aiosqlite",
        "confluent_kafka",
        "cryptography",
        "fastapi",
        "ijson",
        "jinja2",
        "joserfc",
    ),
    *("lancedb", "matplotlib", "opentelemetry", "pyarrow", "pydantic", "python_multipart", "rich"),
    *("scipy", "sqlite3", "starlette", "uvicorn", "yaml"),
}
PROGRAM = """
import asyncio, json, sys

import uvloop

from kairos.settings.config import Settings
from kairos.settings.engines import EngineSettings
from kairos.service import running

ANSWERS = {
    "/health": b"",
    "/metrics": b"vllm:num_requests_running 0\\n",
    "/v1/models": b'{"data": [{"id": "m"}]}',
    "/v1/chat/completions": b'{"choices": [], "usage": {"prompt_tokens": 1}}',
}


async def answer(reader, writer):
    while head := await reader.readuntil(b"\\r\\n\\r\\n"):
        length = [l for l in head.lower().split(b"\\r\\n") if l.startswith(b"content-length:")]
        await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
        path = head.split()[1].decode()
        body, status = ANSWERS.get(path, b""), 200 if path in ANSWERS else 404
        said = f"HTTP/1.1 {status} -\\r\\ncontent-type: application/json\\r\\n"
        said += f"content-length: {len(body)}\\r\\n\\r\\n"
        writer.write(said.encode() + body)


async def ask(url, method, path, body=b""):
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"{method} {path} HTTP/1.1\\r\\nhost: {host}\\r\\nconnection: close\\r\\n"
    writer.write(f"{head}content-length: {len(body)}\\r\\n\\r\\n".encode() + body)
    said = await reader.read()
    writer.close()
    return int(said.split()[1])


async def main():
    engine = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = "http://127.0.0.1:%d" % engine.sockets[0].getsockname()[1]
    settings = Settings(port=0, admin_port=0, engine=(EngineSettings(url=url),))
    async with running(settings) as service:
        await service.monitor.all_joined.wait()
        known, told = set(sys.modules), {"serves": sorted(sys.modules)}
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
        streamed = json.dumps(json.loads(body) | {"stream": True})
        for asked in ASKED:
            where = service.admin_url if asked.startswith("operators") else service.url
            method, path = asked.split()[-2:]
            sent = {"POST": body, "STREAM": streamed}.get(method, "").encode()
            status = await ask(where, method.replace("STREAM", "POST"), path, sent)
            told[asked] = [status, sorted(set(sys.modules) - known)]
            known |= set(sys.modules)
    print(json.dumps(told))


uvloop.run(main())
"""
HOT = [
    *("POST /v1/chat/completions", "STREAM /v1/chat/completions", "GET /health", "GET /metrics"),
    *("GET /v1/models", "GET /v1/models/m", "POST /tokenize", "operators GET /health"),
    "operators GET /metrics",
]
COLD = ["operators GET /admin/status", "GET /v1/workflows/w", "operators GET /ui"]


@pytest.fixture(scope="module")
def told():
    program = f"ASKED = {HOT + COLD}\n{PROGRAM}"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def packages(modules):
    return {name.partition(".")[0] for name in modules}


def test_what_serves_has_not_imported_what_only_other_routes_need(told):
    assert packages(told["serves"]) & LATE == set()
    assert "kairos.service" in told["serves"]


@pytest.mark.parametrize("asked", HOT)
def test_what_is_asked_again_and_again_imports_nothing_when_it_is_first_asked(told, asked):
    status, imported = told[asked]
    assert status in (200, 404)
    assert imported == []


def test_what_is_asked_seldom_is_answered_all_the_same(told):
    assert [told[asked][0] for asked in COLD] == [200, 404, 200]
    assert "fastapi" in packages(told[COLD[0]][1])


def test_processes_that_are_forked_have_all_that_they_need_from_the_start():
    """And nothing that only other routes do, which each would otherwise hold."""
    program = (
        "import sys\n"
        "import kairos.cluster.workers.supervisor\n"
        "print(*{name.partition('.')[0] for name in sys.modules})\n"
        "print(*(n for n in sys.modules if n in ('kairos.cluster.workers.working',\n"
        "    'kairos.cluster.workers.deciding', 'kairos.gateway.api.gateway',\n"
        "    'kairos.core.balancer')))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    heavy, needed = ran.stdout.splitlines()
    assert set(heavy.split()) & LATE == set()
    assert len(needed.split()) == 4
