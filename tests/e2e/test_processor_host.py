"""`kairos process` as whoever asks it sees it: who is let in, and what is refused."""

import asyncio
import os
import re
import signal
from contextlib import AsyncExitStack

import aiohttp
import msgspec
import pytest
from aiohttp import web

from kairos.cluster import processing_host
from kairos.cluster import processor_service as service
from kairos.core import SetupError
from kairos.settings import RetrievalSettings, Settings
from kairos.simulate.processor_answers import vector
from kairos.workflows import ProcessorTask, RunProcessor, ValuesLost
from kairos.workflows.compile.held import held_text
from kairos.workflows.remote.remote import remote_processors
from tests.e2e.batch_files import key
from tests.e2e.client import LIMIT_S
from tests.e2e.embedder import Embedder
from tests.e2e.flows import answers, invoke, kept_in, put
from tests.support.processes import Process

ID, OTHER = "0" * 32, "1" * 32
NEAR = """
flow: near
operators:
  row: {kind: input}
  vectors: {kind: embed, inputs: {texts: row.texts}}
  store: {kind: ingest, inputs: {texts: row.texts, vectors: vectors}}
  asked: {kind: embed, inputs: {texts: row.question}}
  near: {kind: search, top_k: 1, inputs: {vectors: asked, collection: store}}
outputs: {near: near}
"""


@pytest.fixture
async def stack():
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def embedder(stack, tmp_path):
    runner = web.AppRunner(Embedder(tmp_path / "done", 0).app(), access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


@pytest.fixture
def host(stack, embedder):
    async def start(*, peers=(), keys=(), **fields):
        retrieval = RetrievalSettings(embedders=(embedder,), processors=peers)
        settings = Settings(port=0, retrieval=retrieval, key=keys, **fields)
        return await stack.enter_async_context(processing_host(settings))

    return start


@pytest.fixture
async def session(stack):
    return await stack.enter_async_context(aiohttp.ClientSession())


def embed(texts, **fields):
    asked = {"texts": texts, "batch": 16}
    return command("embed", asked, **fields)


def search(vectors, collection, **fields):
    asked = {"vectors": vectors, "collection": collection, "top_k": 2}
    return command("search", asked, **fields)


def command(kind, arguments, *, signature=ID, stays=False, held=None):
    return RunProcessor(
        *(1, 0, "node", 0, 1, "node", signature, 0),
        kind=kind,
        model=None,
        arguments=arguments,
        idempotency_key=None,
        depth=1,
        stays=stays,
        held=held or {},
    )


def task(of, *, place="me:1", run="run-1", drop=()):
    return ProcessorTask(run=run, tenant="default", place=place, began_at=0, command=of, drop=drop)


@pytest.fixture
def ask(session):
    async def post(host, of, *, key="", **fields):
        data = of if isinstance(of, bytes) else msgspec.json.encode(task(of, **fields))
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = f"{host.url}/v1/process"
        async with session.post(url, data=data, headers=headers) as answer:
            return answer.status, await answer.json()

    return post


async def test_a_value_stays_and_is_used_where_it_is(host, ask):
    one = await host()
    assert await ask(one, embed(["a", "b"])) == (200, {"value": [vector("a"), vector("b")]})
    status, kept = await ask(one, embed(["a", "b"], stays=True))
    assert (status, list(kept)) == (200, ["held_bytes"])
    ingest = command(
        "ingest",
        {"texts": ["a", "b"], "vectors": held_text(ID)},
        signature=OTHER,
        stays=True,
        held={ID: "me:1"},
    )
    assert (await ask(one, ingest))[0] == 200
    asked = search(vector("b"), [held_text(OTHER)], held={OTHER: "me:1"})
    status, found = await ask(one, asked)
    assert (status, found["value"][0]) == (200, {"text": "b", "score": 1.0})
    assert await ask(one, asked, run="run-2") == (200, {"lost": [OTHER]})
    assert await ask(one, asked, drop=(OTHER,)) == (200, {"lost": [OTHER]})


async def test_a_value_is_fetched_from_a_peer_and_from_nowhere_else(host, ask, stack, session):
    has, elsewhere = await host(), []

    async def took(request):
        elsewhere.append(request.path)
        return web.json_response([])

    app = web.Application()
    app.router.add_get("/{any:.*}", took)
    runner = web.AppRunner(app)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stranger = f"127.0.0.1:{runner.addresses[0][1]}"

    other = await host(peers=(has.url,))
    place = has.url.removeprefix("http://")
    await ask(has, embed("b", stays=True), place=place)
    collection = {"texts": ["a", "b"], "vectors": [vector("a"), vector("b")]}
    status, found = await ask(other, search(held_text(ID), collection, held={ID: place}))
    assert (status, found["value"][0]["text"]) == (200, "b")
    assert other.work.peers.fetched_bytes == len(vector("b")) + 2
    for held in ({ID: stranger}, {ID: f"{place}/../x"}, {ID: f"{stranger}@{place}"}, {}):
        status, refused = await ask(other, search(held_text(ID), collection, held=held))
        assert (status, refused["error"]["code"]) == (400, "invalid_request")
    assert elsewhere == []


async def test_what_a_dead_peer_held_is_lost(host, ask):
    other = await host(peers=("http://127.0.0.1:9",))
    collection = {"texts": ["a"], "vectors": [vector("a")]}
    asked = search(held_text(ID), collection, held={ID: "127.0.0.1:9"})
    assert await ask(other, asked) == (200, {"lost": [ID]})
    assert other.work.lost == 1


async def test_without_a_key_nobody_is_let_in_and_a_value_is_its_tenants(host, ask, session):
    one = await host(keys=(key("acme"), key("bolt")))
    assert (await ask(one, embed("a")))[0] == 401
    assert (await ask(one, embed("a", stays=True), key="acme"))[0] == 200
    for path, method in (("about", "GET"), (f"held/run-1/{ID}", "GET"), ("held/run-1", "DELETE")):
        async with session.request(method, f"{one.url}/v1/{path}") as answer:
            assert answer.status == 401
    url = f"{one.url}/v1/held/run-1/{ID}"
    for who, status in (("acme", 200), ("bolt", 410)):
        async with session.get(url, headers={"Authorization": f"Bearer {who}"}) as answer:
            assert answer.status == status
    async with session.get(f"{one.url}/health") as answer:
        assert answer.status == 200


async def test_a_hangup_has_keys_read_again(tmp_path, session, embedder):
    config = tmp_path / "kairos.toml"

    def let_in(*tenants, host="127.0.0.1"):
        keys = "".join(
            f'[[key]]\nsha256 = "{key(each).sha256}"\ntenant = "{each}"\n' for each in tenants
        )
        config.write_text(f'host = "{host}"\nport = 0\n{keys}')

    async def is_let_in(url, who):
        headers = {"Authorization": f"Bearer {who}"}
        async with session.get(f"{url}/v1/about", headers=headers) as answer:
            return answer.status == 200

    let_in("old", host="0.0.0.0")
    command = ("process", "--embedder", embedder, "--config", config)
    with Process(tmp_path, "process", *command, fresh=True) as process:
        await process.until_it_says("processing on")
        url = f"http://127.0.0.1:{re.search(r':([0-9]+)$', process.said, re.M)[1]}"
        assert await is_let_in(url, "old")

        let_in(host="0.0.0.0")
        os.kill(process.pid, signal.SIGHUP)
        await process.until_it_says("the settings stay as they are: 0.0.0.0 can be reached")
        assert await is_let_in(url, "old")

        let_in("new", host="0.0.0.0")
        os.kill(process.pid, signal.SIGHUP)
        await process.until_it_says("the settings were read again; changed: key")
        assert not await is_let_in(url, "old")
        assert await is_let_in(url, "new")
        assert process.stop() == 0


async def test_a_peer_shows_its_key(host, ask, monkeypatch):
    monkeypatch.setitem(os.environ, "PEER_KEY", "acme")
    monkeypatch.setitem(os.environ, "BAD_KEY", "none")
    has = await host(keys=(key("acme"),))
    place = has.url.removeprefix("http://")
    await ask(has, embed("b", stays=True), key="acme", place=place)
    collection = {"texts": ["b"], "vectors": [vector("b")]}
    asked = search(held_text(ID), collection, held={ID: place})
    other = await host(peers=(f"{has.url},api_key_env=PEER_KEY",))
    assert (await ask(other, asked))[0] == 200
    wrong = await host(peers=(f"{has.url},api_key_env=BAD_KEY",))
    status, refused = await ask(wrong, asked)
    assert status == 400
    assert "key" in refused["error"]["message"]


@pytest.mark.parametrize(
    "of",
    [
        b"{",
        b"[1]",
        msgspec.json.encode(task(embed("a"), run="../x")),
        msgspec.json.encode(task(embed(["a", 7]))),
        msgspec.json.encode(task(command("embed", {"texts": "a"}))),
        msgspec.json.encode(task(command("embed", {"texts": "a", "batch": 1 << 40}))),
        msgspec.json.encode(task(command("embed", {"batch": 1}))),
        msgspec.json.encode(task(embed("a", stays=True, signature="../../etc"))),
        msgspec.json.encode(task(search("AAAA!", {"texts": ["a"], "vectors": ["b"]}))),
        msgspec.json.encode(
            task(search([vector("a")], {"texts": ["a"], "vectors": held_text(ID)}))
        ),
        msgspec.json.encode(task(search([vector("a")], [[held_text(ID)]], held={ID: "me:1"}))),
        msgspec.json.encode(task(search([vector("a")], "docs"))),
        msgspec.json.encode(task(search([vector("a")], [held_text(ID), 3], held={ID: "me:1"}))),
        msgspec.json.encode(task(command("rerank", {"query": "q", "passages": [], "top_k": 1}))),
    ],
)
async def test_what_is_no_task_of_it_is_refused(host, ask, of):
    one = await host()
    status, refused = await ask(one, of)
    assert (status, refused["error"]["code"]) == (400, "invalid_request")


async def test_bodies_are_bounded_each_and_together(host, ask, monkeypatch):
    one = await host()
    monkeypatch.setattr(service, "MOST_BYTES", 2_000)
    assert (await ask(one, embed("x" * 2_000)))[0] == 413
    monkeypatch.setattr(service, "_MOST_BODIES", 1_000)
    assert (await ask(one, embed("x" * 1_200)))[0] == 429
    assert (await ask(one, embed("x")))[0] == 200
    monkeypatch.setattr(service, "_MOST_TASKS", 0)
    assert (await ask(one, embed("x")))[0] == 503


async def test_a_flow_is_invoked_online_with_processors_of_their_own(
    kairos, engine, host, tmp_path
):
    answers(engine)
    one = await host()
    retrieval = RetrievalSettings(processors=(one.url,))
    served = await kairos(engine.url, flows=kept_in(tmp_path / "flows"), retrieval=retrieval)
    assert (await put(served, NEAR, "near")).status == 200
    answer = await invoke(served, {"texts": ["bees", "owls"], "question": "owls"}, "near")

    assert answer.status == 200, answer.body
    assert answer.json()["outputs"]["near"] == [{"text": "owls", "score": 1.0}]
    assert one.work.store.figures.kept >= 2
    async with asyncio.timeout(LIMIT_S):
        while len(one.work.store):
            await asyncio.sleep(0.01)


async def test_what_stayed_with_a_processor_that_a_run_no_longer_has_is_lost(host):
    one = await host()
    settings = RetrievalSettings(processors=(one.url,))
    asked = search(held_text(ID), [held_text(OTHER)], held={ID: "gone:1", OTHER: "gone:1"})
    async with remote_processors(settings, {}) as found:
        with pytest.raises(ValuesLost) as lost:
            await found.of(run="run-1").run(asked)
    assert lost.value.ids == (ID, OTHER)


async def test_it_does_not_listen_beyond_loopback_for_anybody(embedder):
    retrieval = RetrievalSettings(embedders=(embedder,))
    with pytest.raises(SetupError, match="kairos keys create"):
        async with processing_host(Settings(host="0.0.0.0", port=0, retrieval=retrieval)):
            await asyncio.sleep(0)
