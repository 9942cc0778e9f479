"""Every error that a client can receive has a test.

An error counts as tested if a test names its class or its code. The files and batches of a tenant
have their table here.
"""

import ast
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from fastapi import FastAPI

from kairos.cluster import ClusterControl
from kairos.cluster.pool.cluster_control import AskTheOrchestrator
from kairos.gateway import OperatorsPage
from kairos.gateway.page.workflows import FollowedElsewhere
from kairos.settings import Settings
from tests.e2e.batch_files import CHAT, begin, client_of, ended, kept_in, lines_of, upload
from tests.e2e.conftest import engine, engines, kairos  # noqa: F401 - fixtures
from tests.support.simulate import build

ROOT = Path(__file__).parents[2]


def errors_with_codes(sources):
    """Yield class and code of each error that has a code of its own."""
    classes = [
        each for text in sources for each in ast.walk(ast.parse(text)) if type(each) is ast.ClassDef
    ]
    errors = {"KairosError"}
    while more := {
        each.name
        for each in classes
        if each.name not in errors
        and any(ast.unparse(base).split(".")[-1] in errors for base in each.bases)
    }:
        errors |= more
    for each in classes:
        if each.name in errors:
            for line in each.body:
                if type(line) is ast.Assign and ast.unparse(line.targets[0]) == "code":
                    yield each.name, ast.literal_eval(line.value)


def texts(folder):
    return [path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))]


def test_which_errors_have_codes():
    source = """
class A(KairosError): code = "a"
class B(A): pass
class C(B): code = "c"
class D: code = "d"
"""
    assert [*errors_with_codes([source])] == [("A", "a"), ("C", "c")]


def test_each_error_with_a_code_is_named_by_a_test():
    tests = "\n".join(texts("tests"))
    known = [*errors_with_codes(texts("kairos"))]
    assert len(known) > 50
    untested = [
        (name, code)
        for name, code in known
        if name not in tests and f'"{code}"' not in tests and name != "KairosError"
    ]
    assert untested == [], "write a test that receives it, and names its code"


class Tenant:
    """A client of a service with room for two files and one open batch."""

    def __init__(self, served, client):
        self.served, self.client = served, client

    async def ask(self, method, path, **options):
        answer = await self.served.ask(method, path, **options)
        return answer.status, answer.error()["code"]

    async def post_file(self, content, **headers):
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", content, filename="f.jsonl")
        return await self.served.ask("POST", "/v1/files", data=form, headers=headers)

    async def unknown(self, kind):
        answer = await self.served.ask("GET", f"/v1/{kind}/unknown")
        assert f"'unknown'; GET /v1/{kind} lists" in answer.error()["message"]
        return answer.status, answer.error()["code"]

    async def too_large(self):
        answer = await self.post_file(b"x" * 2_001)
        return answer.status, answer.error()["code"]

    async def too_many(self):
        for _ in range(2):
            await upload(self.client, lines_of(1))
        answer = await self.post_file(b"{}")
        return answer.status, answer.error()["code"]

    async def second_batch(self):
        batch = await begin(self.client, lines_of(1))
        asked = {"endpoint": CHAT, "completion_window": "24h", "input_file_id": batch.input_file_id}
        return await self.ask("POST", "/v1/batches", json=asked)

    async def delete_what_is_read(self):
        batch = await begin(self.client, lines_of(1))
        return await self.ask("DELETE", f"/v1/files/{batch.input_file_id}")

    async def cancel_what_ended(self):
        batch = await ended(self.client, await begin(self.client, b"no line"))
        assert batch.status == "failed"
        return await self.ask("POST", f"/v1/batches/{batch.id}/cancel")

    async def key_again(self):
        assert (await self.post_file(b"one", **{"Idempotency-Key": "k"})).status == 200
        answer = await self.post_file(b"other", **{"Idempotency-Key": "k"})
        return answer.status, answer.error()["code"]

    async def form(self, content):
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        return await self.ask("POST", "/v1/files", data=content, headers=headers)


REFUSED = {
    "a file that is not there": (lambda t: t.unknown("files"), 404, "file_not_found"),
    "a batch that is not there": (lambda t: t.unknown("batches"), 404, "batch_not_found"),
    "a file that is too large": (Tenant.too_large, 413, "file_too_large"),
    "one file too many": (Tenant.too_many, 429, "batch_limit"),
    "one batch too many": (Tenant.second_batch, 429, "batch_limit"),
    "a file that is in use": (Tenant.delete_what_is_read, 409, "file_in_use"),
    "a batch that has ended": (Tenant.cancel_what_ended, 409, "batch_not_cancellable"),
    "a key of another upload": (Tenant.key_again, 422, "idempotency_key_reused"),
    "a form that breaks off": (lambda t: t.form(b"--b\r\n"), 400, "invalid_form"),
    "a form without a file": (lambda t: t.form(b"--b--\r\n"), 400, "invalid_form"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_tenant_receives_the_code_of_its_mistake(kairos, engine, tmp_path, what):  # noqa: F811
    makes, status, code = REFUSED[what]
    engine.answer = engine.when_released
    limits = {"max_files": 2, "max_file_bytes": 2_000, "max_open": 1}
    served = await kairos(engine.url, batches=kept_in(tmp_path / "batches", **limits))
    async with client_of(served.url) as client:
        assert await makes(Tenant(served, client)) == (status, code)


async def test_an_operator_receives_the_code_of_a_mistake(kairos, engine):  # noqa: F811
    served = await kairos(engine.url)
    for kind in ("files", "batches"):
        answer = await served.ask("GET", f"/v1/{kind}")
        assert (answer.status, answer.error()["code"]) == (404, "batches_off")
    added = {"url": "http://127.0.0.1:9", "api_key_env": "HOME"}
    answer = await served.operate("POST", "instances", json=added)
    assert (answer.status, answer.error()["code"]) == (400, "key_not_named")


async def test_what_another_process_follows_is_said_to_be_elsewhere():
    brain = SimpleNamespace(now=lambda: 0, balancer=build.balancer())
    page = OperatorsPage(brain, None, None, None, Settings())
    with pytest.raises(FollowedElsewhere) as refused:
        page.workflows.remembered()
    assert (refused.value.status, refused.value.code) == (404, "not_here")

    app = FastAPI()
    ClusterControl.add_tenants(None, app)
    with pytest.raises(AskTheOrchestrator) as refused:
        await app.routes[-1].endpoint()
    assert (refused.value.status, refused.value.code) == (404, "not_here")
