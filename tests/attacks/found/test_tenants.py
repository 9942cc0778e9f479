"""Attacks of one tenant on another. Each says what it did before, and what it does now."""

import asyncio
import hashlib
import json
import re

import pytest
from aiohttp import web

from kairos.core import Cancelled
from kairos.settings import BatchSettings, FlowSettings, KeySettings
from kairos.workflows.retrieve.engine_pool import EngineGroup
from tests.e2e.client import LIMIT_S
from tests.e2e.test_workers import serve  # noqa: F401 - a fixture
from tests.support.settings.quotas import QuotaSettings

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
HERS, MINE = {"Authorization": "Bearer hers"}, {"Authorization": "Bearer mine"}
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}


def keys():
    return tuple(
        KeySettings(sha256=hashlib.sha256(name.encode()).hexdigest(), tenant=name)
        for name in ("hers", "mine")
    )


class Keeper:
    """An engine that keeps responses under the ids that requests choose, as vLLM does."""

    def __init__(self, engine):
        self.kept, engine.answer = {}, self.answer

    async def answer(self, request):
        named = request.path.split("/")[3:]
        if named:
            kept = self.kept.get(named[0])
            if kept is None:
                return web.json_response({"error": {"message": "none"}}, status=404)
            if request.method == "DELETE":
                del self.kept[named[0]]
            return web.json_response(kept)
        asked = await request.json()
        previous = self.kept.get(asked.get("previous_response_id"), {})
        key = asked.get("request_id", f"resp_{len(self.kept)}")
        self.kept[key] = {"id": key, "text": asked["input"], "knows": previous.get("text")}
        return web.json_response(self.kept[key])


@pytest.fixture
async def keeper(kairos, engine):
    keeper = Keeper(engine)
    keeper.served = await kairos(engine.url, key=keys())
    return keeper


async def say(keeper, headers, text, **fields):
    body = {"model": "tiny", "input": text} | fields
    return await keeper.served.ask("POST", RESPONSES, json=body, headers=headers)


@pytest.mark.parametrize(
    ("method", "more"), [("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")]
)
async def test_a_response_is_its_tenants_own(keeper, method, more):
    """Read, cancel or delete a response of another tenant by its id.

    Before: 200, with what the tenant had asked and was answered. Now: 404, as for no response.
    """
    key = (await say(keeper, HERS, "the secret")).json()["id"]
    path = f"{RESPONSES}/{key}{more}"
    answer = await keeper.served.ask(method, path, headers=MINE)
    assert (answer.status, answer.error()["code"]) == (404, "response_not_found")
    assert key in keeper.kept
    assert (await keeper.served.ask(method, path, headers=HERS)).status == 200


@pytest.mark.parametrize("spelt", ["plain", "escaped"])
async def test_nobody_goes_on_from_anothers_response(keeper, spelt):
    """Name a response of another tenant as the previous one.

    Before: the engine went on from it, and knew its text. Now: 404.
    """
    key = (await say(keeper, HERS, "the secret")).json()["id"]
    mine = (await say(keeper, MINE, "mine")).json()["id"]
    body = {"model": "tiny", "input": "What was said?", "previous_response_id": key}
    content = json.dumps(body)
    if spelt == "escaped":
        content = content.replace(key, "".join(f"\\u{ord(each):04x}" for each in key))
    headers = MINE | {"Content-Type": "application/json"}
    answer = await keeper.served.ask("POST", RESPONSES, data=content, headers=headers)
    assert answer.status == 404
    answer = await say(keeper, MINE, "Go on", previous_response_id=mine)
    assert answer.json()["knows"] == "mine"


@pytest.mark.parametrize("padding", [0, 1 << 19], ids=["small", "large"])
async def test_nobody_chooses_the_id_of_a_response(keeper, padding):
    """Choose the id of another's response for one's own, by `request_id`.

    Before: the engine kept it in the other's place, so the tenant read what was put there.
    Now: Kairos chooses ids.
    """
    hers = (await say(keeper, HERS, "hers")).json()["id"]
    chosen = await say(keeper, MINE, "x" * padding + "forged", request_id=hers)
    assert chosen.status == 200
    assert chosen.json()["id"] != hers
    read = await keeper.served.ask("GET", f"{RESPONSES}/{hers}", headers=HERS)
    assert read.json()["text"] == "hers"


async def test_tokens_count_that_are_read_before_the_client_leaves(kairos, engine):
    """Read a stream almost to its end, and leave: again and again.

    Before: of 250 tokens that were read none was charged, if it took less than a second, so there
    was no limit. Now: all are charged, and the quota ends it.
    """
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    engine.answer = engine.stream(*[event * 250] * 3)
    quota = QuotaSettings(tenant="mine", tokens_per_minute=1000)
    served = await kairos(engine.url, key=keys(), quota=(quota,))
    for number in range(20):
        wire = await served.connect()
        body = ASKED | {"stream": True, "max_tokens": 300}
        await wire.post(CHAT, body, "Authorization: Bearer mine", "Content-Type: application/json")
        engine.release()
        status, _ = await wire.head()
        if status == 429:
            break
        async with asyncio.timeout(LIMIT_S):
            read = b""
            while read.count(b"data:") < 250:
                read += await wire.reader.read(1 << 16)
        wire.leave()
        await served.facts.seen(Cancelled, number + 1)
    assert (status, number < 10) == (429, True)


async def test_an_id_is_free_whatever_another_process_has_in_flight(serve, engine, tmp_path):  # noqa: F811
    """Send the id of another tenant's call that another process performs.

    Before: 503 `request_in_flight`, which told that the call was there, and blocked the id.
    Now: the call has another id.
    """
    engine.answer = engine.when_released
    lines = [f'[[key]]\nsha256 = "{key.sha256}"\ntenant = "{key.tenant}"\n' for key in keys()]
    config = tmp_path / "kairos.toml"
    config.write_text("".join(lines))
    served = await serve("--engine", engine.url, "--config", str(config))
    named = {"x-request-id": "payroll"}
    calls = [asyncio.create_task(served.ask(body=ASKED, headers=HERS | named))]
    await engine.called()
    # Connections are spread over two processes: some of these meet the other.
    calls += [asyncio.create_task(served.ask(body=ASKED, headers=MINE | named)) for _ in range(8)]
    await engine.called(len(calls))
    again = MINE | named | {"x-kairos-attempt": "2"}
    for _ in range(4):
        calls.append(asyncio.create_task(served.ask(body=ASKED, headers=again)))
        await engine.called(len(calls))
    engine.release(len(calls))
    answers = await asyncio.gather(*calls)
    assert {status for status, _ in answers} == {200}
    assert "request_id_taken" not in str(answers)


async def test_what_engines_are_told_is_said_by_nobody_else(kairos, engine):
    """Have an engine connect elsewhere, by fields that vLLM takes for its transfer parameters.

    Before: `ec_transfer_params` reached the engine, and so did members of `vllm_xargs`. A text in
    their place ends an engine with a KV connector. Now: the field is taken out, members are 400.
    """
    served = await kairos(engine.url, key=keys())
    evil = {"do_remote_prefill": True, "remote_host": "192.0.2.1"}
    assert (await served.chat(headers=MINE, ec_transfer_params=evil)).status == 200
    assert "192.0.2.1" not in engine.calls[0].body.decode()
    for name in ("kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode"):
        answer = await served.chat(headers=MINE, vllm_xargs={"a": 1, name: "x"})
        assert (answer.status, answer.error()["param"]) == (400, "vllm_xargs")
    assert len(engine.calls) == 1


class Embedder:
    """An engine of an embedder that counts, and takes any model's name."""

    base_url, models = "http://e", None

    def serves(self, _):
        return True


async def test_no_tenant_waits_for_all_that_another_embeds(kairos):
    """Ask for thousands of texts, by many models and sizes of batches.

    Before: one text of another tenant waited for all of them, as each model and size had two more
    batches in hand at the engine. Now: it is in the third batch.
    """
    batches, gate = [], asyncio.Event()

    async def ask(_engine, _model, items):
        batches.append(list(items))
        await gate.wait()
        return [0] * len(items)

    group = EngineGroup([Embedder()], ask)
    asked = [(f"m{n}", size) for n in range(8) for size in (1, 16)]
    async with asyncio.timeout(LIMIT_S):
        greedy = [
            asyncio.create_task(group.pool(model, size).results((0, 0, n), 0, ["x"] * 1000, "hers"))
            for n, (model, size) in enumerate(asked)
        ]
        while len(batches) < 2:
            await asyncio.sleep(0)
        patient = asyncio.create_task(group.pool("m0", 16).results((9,), 0, ["mine"], "mine"))
        await asyncio.sleep(0)
        assert len(batches) == 2
        gate.set()
        await patient
        assert any("mine" in each for each in batches[:4])
        for each in greedy:
            each.cancel()
        await asyncio.gather(*greedy, return_exceptions=True)
        await group.close()


FORM = "\r\n".join(
    [
        "--x",
        'Content-Disposition: form-data; name="purpose"',
        "",
        "batch",
        "--x",
        'Content-Disposition: form-data; name="file"; filename="NAME"',
        "",
        json.dumps({"custom_id": "1", "method": "POST", "url": CHAT, "body": ASKED}),
        "--x--",
        "",
    ]
)


async def upload(served, headers, name="a.jsonl"):
    headers = headers | {"Content-Type": "multipart/form-data; boundary=x"}
    data = FORM.encode().replace(b"NAME", name.encode("utf-8", "surrogateescape"))
    return await served.ask("POST", "/v1/files", data=data, headers=headers)


async def test_files_and_batches_of_others_are_not_there(kairos, standin, tmp_path):
    """Use another's ids: to read, delete and cancel, as a cursor, and as a batch's input.

    Before and now: each answer is that for an id that nobody has.
    """
    batches = BatchSettings(directory=str(tmp_path / "b"))
    served = await kairos(standin.url, key=keys(), batches=batches)
    file_id = (await upload(served, HERS)).json()["id"]
    assert (await served.ask("GET", "/v1/files", headers=MINE)).json()["data"] == []
    window = {"endpoint": CHAT, "completion_window": "24h"}
    asked = {"input_file_id": file_id} | window
    batch_id = (await served.ask("POST", "/v1/batches", json=asked, headers=HERS)).json()["id"]
    assert (await served.ask("GET", "/v1/batches", headers=MINE)).json()["data"] == []
    for method, path, body in (
        ("GET", "/v1/files/ID", None),
        ("GET", "/v1/files/ID/content", None),
        ("DELETE", "/v1/files/ID", None),
        ("GET", "/v1/files?after=ID", None),
        ("POST", "/v1/batches", {"input_file_id": "ID"} | window),
        ("GET", "/v1/batches/ID", None),
        ("POST", "/v1/batches/ID/cancel", None),
        ("GET", "/v1/batches?after=ID", None),
    ):
        theirs = batch_id if "batches/" in path or "batches?" in path else file_id
        absent = re.sub("[0-9a-f]{24}", "0" * 24, theirs)
        found = [
            await served.ask(
                method,
                path.replace("ID", key),
                headers=MINE,
                json=None if body is None else body | {"input_file_id": key},
            )
            for key in (theirs, absent)
        ]
        assert {each.status for each in found} == {404}, path
        first, second = (each.body.decode() for each in found)
        assert first.replace(theirs, absent) == second


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "a\0b",
        "\x1b[31mred\x1b[0m",
        "\u202etxt.exe",
        "\udcff\udcfe",
        "x" * 3000,
        "a\r\nX-Injected: yes",
        '"; filename="b',
    ],
)
async def test_a_files_name_is_only_a_name(kairos, standin, tmp_path, caplog, name):
    """Upload files with names that are paths, escapes, or lines of a header.

    Before and now: nothing is written outside the directory, no control character comes back or
    stands in the log, and no header is made of it.
    """
    directory = tmp_path / "b"
    served = await kairos(standin.url, batches=BatchSettings(directory=str(directory)))
    answer = await upload(served, {}, name)
    assert answer.status in (200, 400)
    assert not re.search(r"[\x00-\x1f\x7f]", answer.body.decode())
    assert "x-injected" not in answer.headers
    if answer.status == 200:
        content = await served.ask("GET", f"/v1/files/{answer.json()['id']}/content")
        assert json.loads(content.body)["custom_id"] == "1"
        assert not re.search(r"[\x00-\x1f\x7f]", content.headers.get("content-disposition", ""))
    assert {each.name for each in tmp_path.iterdir()} == {"b"}
    assert "\x1b" not in caplog.text


async def test_names_without_end_make_few_series(kairos, standin, tmp_path):
    """Make up apps, agents, classes, models and routes, each in a call of its own.

    Before and now: the metrics of both ports stay within a bound.
    """
    flows = FlowSettings(directory=str(tmp_path / "f"))
    served = await kairos(standin.url, key=keys(), flows=flows)

    async def lines():
        urls = f"{served.url}/metrics", f"{served.service.admin_url}/metrics"
        return [(await served._ask("GET", url)).body.count(b"\n") for url in urls]

    async def make_up(begin, end):
        for number in range(begin, end):
            named = MINE | {
                "X-Kairos-App": f"app{number}",
                "X-Kairos-Agent": f"agent{number}",
                "X-Kairos-Workflow-Id": f"w{number}",
            }
            await served.chat(headers=named, max_tokens=1)
            await served.chat(headers=named | {"X-Kairos-Class": f"c{number}"})
            await served.chat(headers=named, model=f"m{number}")
            await served.ask("POST", f"/v1/made-up-{number}", json={}, headers=named)
            await served.ask("POST", f"/v1/flows/f{number}/invoke", json={}, headers=named)

    await make_up(0, 130)
    before = await lines()
    await make_up(130, 200)
    assert [after - each for after, each in zip(await lines(), before, strict=True)] == [0, 0]
