"""Requests without a sufficient key, whose headers and paths should mislead a router."""

import pytest

from tests.e2e.test_roles import keys

# A URL that a framework makes of the header has another path than the request.
HOSTS = [
    "localhost/health?",
    "localhost:8001/health#",
    "localhost:8001/ui/ask/x?",
    "[::1]/health?",
    "[::1]/ui/ask/",
    "127.0.0.1/health",
    "127.0.0.1:8001/health?x=",
    "127.0.0.1:8001\\health",
    "localhost:health",
    "[::1]@evil.example",
    "a@localhost",
    "localhost",
    "127.0.0.1",
]
PATHS = [
    "/health/../admin/instances",
    "/health/%2e%2e/admin/instances",
    "/ui/ask/../../admin/instances",
    "/ui/ask/%2e%2e/%2e%2e/admin/instances",
    "/ui/ask%2f..%2f..%2fadmin/instances",
    "//admin/instances",
    "/admin//instances",
    "/admin/instances/",
    "/ADMIN/instances",
    "/admin/instances%2f",
    "/admin/instances%00",
    "/health;/admin/instances",
    "http://localhost/admin/instances",
]
ENGINE = b'{"url": "http://127.0.0.1:1"}'


async def status(wire, method, path, host, *headers):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(ENGINE)}"]
    lines += ["Content-Type: application/json", *headers]
    await wire.send("\r\n".join([*lines, "", ""]).encode() + ENGINE)
    return (await wire.answer()).status


@pytest.fixture
async def served(kairos, engine):
    return await kairos(engine.url, key=keys("viewer", "admin"))


async def test_no_host_opens_a_path_without_a_key(served):
    wire = await served.connect(served.service.admin_url)
    for host in HOSTS:
        for method, path in (
            ("GET", "/admin/instances"),
            ("POST", "/admin/instances"),
            ("DELETE", f"/admin/instances/{served.service.fleet.views()[0].id}"),
            ("GET", "/metrics"),
            ("GET", "/ui"),
        ):
            assert await status(wire, method, path, host) in (401, 421), (method, path, host)
    assert [each.state for each in served.service.fleet.views()] == ["in_use"]


async def test_no_spelling_of_a_path_lets_a_viewer_change_anything(served):
    wire = await served.connect(served.service.admin_url)
    for path in PATHS:
        for method, headers in (
            ("GET", ()),
            ("POST", ()),
            ("POST", ("Authorization: Bearer viewer",)),
            ("POST", ("Authorization: Bearer viewer", "Origin: http://localhost")),
        ):
            found = await status(wire, method, path, "localhost", *headers)
            assert found in (400, 401, 403, 404, 405), (method, path, headers)
    assert len(served.service.fleet.views()) == 1
