"""The applications of `examples/` say what their chains say, whatever passes are on: engines are
asked the same, and one whose answer is a function of what it is asked gives the same table."""

import asyncio
import json
from collections import Counter
from hashlib import sha256

import pytest
from aiohttp import web

from examples.demo import HERE
from kairos.settings import RetrievalSettings
from kairos.workflows import Passes, load_flow
from tests.e2e.cli.flow_runs import Runs, completion
from tests.e2e.cli.test_flow_decoding import END, chunk
from tests.e2e.embedder import Embedder

APPLICATIONS = {  # and whether items of a list go on
    "naive_rag": False,
    "advanced_rag": True,
    "web_search": False,
    "contextual_retrieval": False,
    "ask_documents": True,
}
ALL = Passes.__struct_fields__
CHAIN = dict.fromkeys(ALL, False)
PARTS = 3  # in which a streamed answer comes
WORDS = ("growth", "revenue", "cost", "year", "trade", "share", "tax", "debt", "cash", "loan")


def text(name, words):
    drawn = sha256(name.encode()).digest()
    return " ".join(f"{WORDS[drawn[n % 32] % 10]}{n % 97}" for n in range(words))


# Of several batches of passages; of passages that are equal; and one that there was before.
ROWS = [
    {"text": text("a", 4_000), "question": "What of revenue7 and cost9 in year11?"},
    {"text": text("b", 1_000) + " same" * 3_000, "question": "Which same debt3, which cash4?"},
    {"text": text("c", 300), "question": "Is growth1 a share2?"},
]
ROWS.append(ROWS[0])


def digest(body):
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def asked(body):
    """What an answer depends on."""
    return {name: body[name] for name in body if name not in ("stream", "stream_options")}


def is_ahead(body):
    return body.get("continue_final_message", False)


def said(body):
    """A function of what is asked alone, which keeps to the schema where there is one."""
    name = digest(asked(body))
    format_ = body.get("response_format")
    if format_ is None:
        return f"said {name[:12]} of {WORDS[int(name, 16) % 10]}"
    properties = format_["json_schema"]["schema"]["properties"]
    if "look_up" in properties:
        return json.dumps({"look_up": ("yes", "no")[int(name, 16) % 2]})
    count = properties["questions"]["minItems"]
    return json.dumps({"questions": [f"{n} {name} {name}"[:64] for n in range(count)]})


async def answered(request):
    """Later calls overtake earlier ones."""
    body = json.loads(await request.read())
    text = said(body)
    await asyncio.sleep(int(digest(asked(body))[:2], 16) / 10_000)
    if not body.get("stream"):
        return completion(text)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    size = -(-len(text) // PARTS)
    for part in [chunk(text[at : at + size]) for at in range(0, len(text), size)] + END:
        await response.write(part)
        await asyncio.sleep(0.001)
    return response


class Seen:
    """What came out, and what engines had been asked for it."""

    def __init__(self, table, engine_bodies, processor_bodies):
        self.table = table
        self.ahead = [body for body in engine_bodies if is_ahead(body)]
        self.answering = [body for body in engine_bodies if not is_ahead(body)]
        self.calls = Counter(json.dumps(asked(body), sort_keys=True) for body in self.answering)
        self.texts = Counter(each for body in processor_bodies for each in body.get("input", ()))
        ranked = [body for body in processor_bodies if "documents" in body]
        self.ranked = Counter(
            (body["query"], each) for body in ranked for each in body["documents"]
        )

    @property
    def counts(self):
        return self.calls, self.texts, self.ranked


@pytest.fixture
async def processors(tmp_path):
    """One that embeds and ranks, and the bodies of what it was asked."""
    bodies = []

    @web.middleware
    async def recorded(request, handler):
        if request.method == "POST":
            bodies.append(await request.json())
        return await handler(request)

    app = Embedder(tmp_path / "embedded.jsonl", 0.0).app()
    app.middlewares.append(recorded)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", bodies
    await runner.cleanup()


@pytest.fixture
def run(tmp_path, engine, processors):
    """An application, by name, with these passes; in the same `place`: over one cache."""
    url, processed = processors
    engine.answer = answered

    async def run(name, passes, place, out="out.jsonl", **fields):
        loaded = load_flow(HERE / f"{name}.yaml", HERE / "functions.py")
        runs = Runs(tmp_path / place, engine)
        runs.directory.mkdir(exist_ok=True)
        runs.functions = loaded.functions
        engine.calls.clear()
        processed.clear()
        record = await runs.run(
            (HERE / f"{name}.yaml").read_text(),
            ROWS,
            out,
            passes=passes,
            retrieval=RetrievalSettings(embedders=(url,), rerankers=(url,)),
            **fields,
        )
        assert record.figures["written"] == len(ROWS), runs.out("out.errors.jsonl")
        bodies = [json.loads(call.body) for call in engine.calls]
        return Seen((runs.directory / out).read_bytes(), bodies, processed)

    return run


def check_same(seen, chain, *, merges):
    """`merges`: what is asked again may be asked once."""
    assert seen.table == chain.table
    for found, expected in zip(seen.counts, chain.counts, strict=True):
        assert set(found) == set(expected)
        if merges:
            assert found <= expected
        else:
            assert found == expected


def begins(ahead, whole):
    """Whether a call that is made ahead is the beginning of what is asked."""
    *before, last = ahead["messages"]
    messages = whole["messages"]
    return (
        len(before) < len(messages)
        and messages[: len(before)] == before
        and messages[len(before)]["role"] == last["role"]
        and messages[len(before)]["content"].startswith(last["content"])
    )


@pytest.mark.parametrize("name", APPLICATIONS)
async def test_an_application_asks_and_says_what_its_chain_does_with_all_passes_on(name, run):
    chain = await run(name, CHAIN, "chain")
    assert not chain.ahead
    check_same(await run(name, CHAIN, "again", concurrency=1), chain, merges=False)
    for place, fields in (("all", {}), ("all, one call at once", {"concurrency": 1})):
        seen = await run(name, {}, place, **fields)
        check_same(seen, chain, merges=True)
        assert seen.calls.total() < chain.calls.total(), "a row that there was before is merged"
        assert all(any(begins(ahead, whole) for whole in seen.answering) for ahead in seen.ahead)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=() if each == "ask_documents" else pytest.mark.acceptance)
        for each in APPLICATIONS
    ],
)
async def test_an_application_asks_and_says_what_its_chain_does_with_any_one_pass_on(name, run):
    chain = await run(name, CHAIN, "chain")
    for each in ALL:
        seen = await run(name, CHAIN | {each: True}, each)
        check_same(seen, chain, merges=each in ("cse", "cached"))
        assert bool(seen.ahead) == (each == "prefill")
        streamed = any(body.get("stream") for body in seen.answering)
        assert streamed == (each == "decoding" and APPLICATIONS[name])
        assert all(any(begins(ahead, whole) for whole in seen.answering) for ahead in seen.ahead)


@pytest.mark.parametrize("name", APPLICATIONS)
async def test_an_application_that_is_run_again_says_the_same_of_what_it_kept(name, run):
    chain = await run(name, CHAIN, "chain")
    await run(name, {}, "kept")
    seen = await run(name, {}, "kept", "again.jsonl")
    assert not seen.answering
    assert seen.table == chain.table
