"""Flows as models of OpenAI's API, with its own client, unchanged."""

import json

import openai
import pytest

from kairos.core import Arrived, Cancelled, WorkflowEnded
from tests.e2e.batch_files import client_of, key
from tests.e2e.flows import REPORTS, answers, invoke, kept_in, prompts, put

TALK = """
flow: talk
operators:
  chat: {kind: input}
  reply:
    kind: llm
    prompt: "{% for each in chat.messages %}{{ each.role }}={{ each.content }};{% endfor %}"
outputs: {reply: reply}
"""
ONE = REPORTS.replace("  summary: summary\n", "")


@pytest.fixture
async def served(kairos, engine, tmp_path):
    answers(engine)
    served = await kairos(engine.url, flows=kept_in(tmp_path / "flows"))
    assert (await put(served, ONE)).status == 200
    return served


@pytest.fixture
async def client(served):
    async with client_of(served.url) as client:
        yield client


def said(text, role="user"):
    return {"role": role, "content": text}


def ask(client, flow="reports", **given):
    given = {"messages": [said("Kairos")]} | given
    return client.chat.completions.create(model=f"flow/{flow}", **given)


async def test_a_flow_is_a_model_for_an_unchanged_client(served, client, engine):
    answer = await ask(client, messages=[said("Be kind.", "system"), said("Kairos")])

    assert answer.choices[0].message.content == "<Judge: <Summarise: Kairos>>"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "flow/reports"
    assert answer.object == "chat.completion"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (20, 6)
    assert {fact.request.workflow_id for fact in served.facts.all(Arrived)} == {answer.id}
    assert len(prompts(engine)) == 2


async def test_its_answer_may_be_a_stream(client):
    stream = await ask(client, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]

    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "<Judge: <Summarise: Kairos>>"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.total_tokens == 26
    assert {chunk.model for chunk in chunks} == {"flow/reports"}


def streaming(engine, *parts):
    """Let the engine stream these parts where a stream is asked for."""
    whole, streamed = engine.answer, engine.stream(*parts)

    async def answer(request):
        asked = json.loads(await request.read())
        return await (streamed if asked.get("stream") else whole)(request)

    engine.answer = answer
    engine.release()


async def test_the_answer_is_streamed_as_the_last_operator_says_it(client, engine):
    def part(text, finish=None):
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
        return b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode()

    streaming(engine, part("It "), part("is.", "stop") + b"data: [DONE]\n\n")
    stream = await ask(client, stream=True)
    texts = aiter(chunk.choices[0].delta.content async for chunk in stream)
    assert [await anext(texts), await anext(texts)] == ["", "It "]
    await engine.called(2)
    engine.release(2)
    assert [text async for text in texts] == ["is.", None]


async def test_an_answer_that_breaks_off_is_an_error_in_the_stream(client, engine):
    streaming(engine, b'data: {"choices": [{"index": 0, "delta": {"content": "It "}}]}\n\n')
    stream = await ask(client, stream=True)
    with pytest.raises(openai.APIError, match="verdict"):
        async for _ in stream:
            pass


async def test_usage_is_told_in_a_stream_only_where_it_is_asked_for(client):
    assert {chunk.usage async for chunk in await ask(client, stream=True)} == {None}


async def test_the_column_messages_has_the_whole_conversation(served, client):
    assert (await put(served, TALK, "talk")).status == 200
    messages = [said("a"), said("b", "assistant"), said("c")]
    answer = await ask(client, "talk", messages=messages)
    assert answer.choices[0].message.content == "<user=a;assistant=b;user=c;>"


async def test_texts_in_parts_are_put_together_and_pictures_are_refused(client):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    answer = await ask(client, messages=[said(parts)])
    assert "Summarise: one\ntwo" in answer.choices[0].message.content

    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(openai.BadRequestError, match="not a text"):
        await ask(client, messages=[said([picture])])


async def test_several_outputs_are_json(served, client):
    await put(served, REPORTS)
    assert (await ask(client)).choices[0].message.content == (
        '{"verdict":"<Judge: <Summarise: Kairos>>","summary":"<Summarise: Kairos>"}'
    )


async def test_columns_and_settings_may_be_sent_beside_the_messages(served, client, engine):
    two = """
flow: two
operators:
  row: {kind: input}
  reply: {kind: llm, prompt: "{{ row.tone }}: {{ row.question }}", max_tokens: 9}
outputs: {reply: reply}
"""
    await put(served, two, "two")
    with pytest.raises(openai.BadRequestError, match="needs the columns 'question', 'tone'"):
        await ask(client, "two")

    more = {"inputs": {"tone": "kind"}, "settings": {"reply.max_tokens": 4}}
    answer = await ask(client, "two", extra_body=more)
    assert answer.choices[0].message.content == "<kind: Kairos>"
    assert b'"max_tokens":4' in engine.calls[-1].body


async def test_flows_are_listed_among_the_models(served, client):
    names = [model.id for model in (await client.models.list()).data]
    assert names == ["tiny", "flow/reports"]
    assert (await client.models.retrieve("flow/reports")).id == "flow/reports"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("flow/others")


async def test_a_flow_that_is_not_there_is_404_and_says_what_to_do(client, engine):
    with pytest.raises(openai.NotFoundError, match="PUT /v1/flows/others") as raised:
        await ask(client, "others")
    assert raised.value.code == "flow_not_found"
    assert engine.calls == []


async def test_what_a_flow_cannot_be_asked_is_refused(client):
    for given in ({"n": 2}, {"messages": [said("x", "system")]}, {"messages": []}):
        with pytest.raises(openai.BadRequestError):
            await ask(client, **given)
    with pytest.raises(openai.BadRequestError, match="asked as a chat"):
        await client.completions.create(model="flow/reports", prompt="x")
    with pytest.raises(openai.BadRequestError, match="asked as a chat"):
        await client.embeddings.create(model="flow/reports", input="x")


async def test_a_flow_calls_no_flow(client):
    with pytest.raises(openai.NotFoundError, match="flow/reports"):
        await ask(client, extra_body={"settings": {"summary.model": "flow/reports"}})


async def test_where_there_are_no_flows_their_models_are_not_known(kairos, engine):
    answers(engine)
    served = await kairos(engine.url)
    (await served.chat(model="flow/reports")).is_refused(404, "model_not_found")


async def test_another_tenants_flow_is_no_model(kairos, engine, tmp_path):
    answers(engine)
    keys = key("acme"), key("bolt")
    served = await kairos(engine.url, flows=kept_in(tmp_path / "mine"), key=keys)
    await put(served, ONE, headers={"authorization": "Bearer acme"})
    async with client_of(served.url, "acme") as acme, client_of(served.url, "bolt") as bolt:
        assert len((await acme.models.list()).data) == 2
        assert len((await bolt.models.list()).data) == 1
        await ask(acme)
        with pytest.raises(openai.NotFoundError):
            await ask(bolt)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_calls_of_the_flow(served, engine, stream):
    engine.answer = engine.when_released
    wire = await served.connect()
    body = {"model": "flow/reports", "messages": [said("x")], "stream": stream}
    await wire.post("/v1/chat/completions", body)
    await engine.called()
    await wire.close()
    await served.facts.seen(Cancelled)
    await engine.until(lambda: engine.lost == 1)
    await served.facts.seen(WorkflowEnded)
    assert served.service.brain.balancer.waiting == 0


async def test_deadlines_and_budgets_hold(client, engine):
    with pytest.raises(openai.PermissionDeniedError) as spent:
        await ask(client, extra_headers={"X-Kairos-Budget-Calls": "1"})
    assert spent.value.code == "budget_calls"
    engine.answer = engine.when_released
    with pytest.raises(openai.InternalServerError) as late:
        await ask(client, extra_headers={"X-Kairos-Deadline-Ms": "200"})
    assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")


async def test_bodies_are_held_until_their_flows_end_and_no_longer(kairos, engine, tmp_path):
    answers(engine)
    limits = {"max_body_bytes": 4_000, "max_held_bytes": 5_000}
    served = await kairos(engine.url, flows=kept_in(tmp_path / "mine"), **limits)
    await put(served, ONE)
    text = "x" * 2_000
    for _ in range(5):
        for name, status in (("reports", 200), ("others", 404)):
            chat = await served.chat(model=f"flow/{name}", messages=[said(text)])
            assert (await invoke(served, {"text": text}, name)).status == status
            assert chat.status == status
    assert (await invoke(served, {"text": "x" * 4_500})).status == 413
    assert (await served.chat(messages=[said(text)])).status == 200
