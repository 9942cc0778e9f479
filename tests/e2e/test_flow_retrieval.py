"""Flows that retrieve, invoked online: on engines over HTTP and collections in files."""

from urllib.parse import urlsplit

import pytest

from kairos.core import Arrived, SetupError
from kairos.settings import RetrievalSettings
from tests.e2e.batch_files import client_of, key
from tests.e2e.flows import answers, events, invoke, kept_in, prompts, put
from tests.e2e.test_flow_figures import counted, shown
from tests.e2e.workflows.test_retrieval import (
    ASK,
    FIND,
    INDEX,
    document,
    embedders,
    reranker,
    texts_of,
)
from tests.support.observe.figures import look_often

__all__ = ["embedders", "reranker"]  # fixtures


@pytest.fixture
async def served(kairos, engine, embedders, reranker, tmp_path, monkeypatch):
    look_often(monkeypatch)
    answers(engine)
    retrieval = RetrievalSettings(
        embedders=tuple(each.url for each in embedders),
        rerankers=(reranker.url,),
        collections=str(tmp_path / "collections"),
    )
    return await kairos(
        engine.url,
        flows=kept_in(tmp_path / "flows"),
        retrieval=retrieval,
        key=(key("acme"), key("bolt")),
    )


def acme(**headers):
    return {"authorization": "Bearer acme"} | headers


async def test_a_rag_flow_is_invoked_from_the_document_to_the_answer(served, engine):
    assert (await put(served, ASK, "ask", headers=acme())).status == 200
    row = {"document": document(3), "question": "what does otter3 eat"}
    answer = await invoke(served, row, "ask", headers=acme())

    assert answer.status == 200, answer.body
    best = answer.json()["outputs"]["best"]
    assert len(best) == 2
    texts = "".join(f"<{each['text']}>" for each in best)
    assert prompts(engine) == [f"{row['question']} {texts}"]
    assert answer.json()["outputs"]["answer"] == f"<{row['question']} {texts}>"


async def test_what_is_computed_ahead_is_in_no_budget_and_no_workflow(served, engine):
    assert (await put(served, ASK, "ask", headers=acme())).status == 200
    row = {"document": document(3), "question": "what does otter3 eat " * 20}
    headers = acme(**{"X-Kairos-Budget-Calls": "1"})
    answer = await invoke(served, row, "ask", headers=headers)

    assert answer.status == 200, answer.body
    ahead = [each for each in engine.calls if b"continue_final_message" in each.body]
    assert len(ahead) == 1
    arrived = [fact.request for fact in served.facts.all(Arrived)]
    assert len(arrived) == 2
    assert len([each for each in arrived if each.workflow_id == answer.json()["id"]]) == 1
    assert answer.json()["usage"]["calls"] == 1


async def test_each_operator_of_retrieval_is_told_as_it_finishes(served):
    await put(served, ASK, "ask", headers=acme())
    row = {"document": document(3), "question": "what does otter3 eat"}
    answer = await invoke(served, row, "ask", headers=acme(), stream=True)
    told = [data["operator"] for name, data in events(answer.body) if name == "operator"]
    assert told[-2:] == ["best", "answer"]
    assert set(told) > {"question", "near", "best", "answer"}


async def test_a11_how_many_passages_are_found_is_said_by_the_query(served):
    await put(served, ASK, "ask", headers=acme())
    row = {"document": document(3), "question": "what does otter3 eat"}
    settings = {"best.top_k": 1, "passages.size": 12}
    answer = await invoke(served, row, "ask", headers=acme(), settings=settings)
    [best] = answer.json()["outputs"]["best"]
    assert len(best["text"].split()) == 12
    refused = await invoke(served, row, "ask", headers=acme(), settings={"near.top_k": 0})
    assert refused.status == 400


async def test_a_collection_is_its_tenants_own(served):
    bolt = {"authorization": "Bearer bolt"}
    for headers in (acme(), bolt):
        for name, flow in (("index", INDEX), ("find", FIND)):
            assert (await put(served, flow, name, headers=headers)).status == 200
    passages = ["otters eat fish", "bees make honey"]
    counted = await invoke(served, {"passages": passages}, "index", headers=acme())
    assert counted.json()["outputs"] == {"count": 2}

    found = await invoke(served, {"question": "bees make honey"}, "find", headers=acme())
    assert found.json()["outputs"]["near"][0]["text"] == "bees make honey"
    nothing = await invoke(served, {"question": "bees make honey"}, "find", headers=bolt)
    assert "bees" not in nothing.body.decode()


async def test_a_rag_flow_is_a_model_that_is_asked_in_words(served):
    await put(served, INDEX, "index", headers=acme())
    await put(served, FIND, "find", headers=acme())
    await invoke(served, {"passages": ["owls hunt at night"]}, "index", headers=acme())
    async with client_of(served.url) as client:
        answer = await client.chat.completions.create(
            model="flow/find", messages=[{"role": "user", "content": "when do owls hunt"}]
        )
    assert "owls hunt at night" in answer.choices[0].message.content


async def test_what_processors_did_is_counted_by_each_of_them(served, embedders, reranker):
    for name, flow in (("index", INDEX), ("find", FIND), ("ask", ASK)):
        await put(served, flow, name, headers=acme())
    await invoke(served, {"passages": ["otters eat", "bees make"]}, "index", headers=acme())
    for headers in (acme(), {"authorization": "Bearer bolt"}):
        await put(served, FIND, "find", headers=headers)
        await invoke(served, {"question": "bees make honey"}, "find", headers=headers)
    row = {"document": document(3), "question": "what does otter3 eat"}
    await invoke(served, row, "ask", headers=acme())

    def ask():
        return served.ask("GET", "/metrics")

    def of(kind, outcome, processor="collections"):
        return f'kind="{kind}",outcome="{outcome}",processor="{processor}"'

    name = "kairos_processor_batch_items"
    ranker = urlsplit(reranker.url).netloc
    batches = await shown(ask, f"{name}_count", lambda it: of("rerank", "finished", ranker) in it)
    text = (await ask()).body.decode()
    items, seconds = counted(text, f"{name}_sum"), counted(text, "kairos_processor_seconds_sum")

    assert (batches[of("ingest", "finished")], items[of("ingest", "finished")]) == (1, 2)
    assert (batches[of("search", "finished")], items[of("search", "finished")]) == (1, 1)
    assert batches[of("search", "refused")] == 1  # of a collection that the tenant has not
    embedded = {key: value for key, value in items.items() if 'kind="embed"' in key}
    assert set(embedded) == {
        of("embed", "finished", urlsplit(each.url).netloc) for each in embedders
    }
    assert sum(embedded.values()) == sum(len(texts_of(each)) for each in embedders)
    assert seconds[of("rerank", "finished", ranker)] > 0
    assert not any(name in text for name in ("acme", "bolt"))


async def test_a_batch_that_an_engine_fails_is_counted(
    kairos, engine, embedders, tmp_path, monkeypatch
):
    look_often(monkeypatch)
    urls = ("http://127.0.0.1:9", embedders[0].url)  # at the first nothing listens
    retrieval = RetrievalSettings(embedders=urls, collections=str(tmp_path / "collections"))
    served = await kairos(engine.url, flows=kept_in(tmp_path / "flows"), retrieval=retrieval)
    await put(served, INDEX, "index")
    assert (await invoke(served, {"passages": ["bees"]}, "index")).status == 200

    counts = await shown(
        lambda: served.ask("GET", "/metrics"),
        "kairos_processor_seconds_count",
        lambda found: len(found) == 3,
    )
    assert counts == {
        'kind="embed",outcome="failed",processor="127.0.0.1:9"': 1,
        f'kind="embed",outcome="finished",processor="{urlsplit(urls[1]).netloc}"': 1,
        'kind="ingest",outcome="finished",processor="collections"': 1,
    }


async def test_without_retrieval_such_a_flow_is_refused_and_says_what_is_missing(
    kairos, engine, tmp_path
):
    served = await kairos(engine.url, flows=kept_in(tmp_path / "flows"))
    refused = await put(served, ASK, "ask")
    assert (refused.status, refused.error()["code"]) == (400, "invalid_flow")
    assert "embedders of [retrieval]" in refused.error()["message"]


async def test_an_embedder_that_is_not_there_is_told_as_kairos_starts(kairos, engine, tmp_path):
    retrieval = RetrievalSettings(embedders=("http://127.0.0.1:9",))
    with pytest.raises(SetupError, match=r"127\.0\.0\.1:9"):
        await kairos(engine.url, flows=kept_in(tmp_path / "flows"), retrieval=retrieval)
