"""Agents that say nothing of themselves, before a whole Kairos."""

import json
from itertools import count

import pytest
from aiohttp import web

from kairos.core import Arrived, Sources, WorkflowEnded

PLAN = "First measure the height of the tower, then drop a stone from its top and count."


def says(text, streamed):
    """An engine's answer of that text, in pieces where it is streamed."""
    ids = count(1)

    async def answer(request):
        if not streamed:
            message = {"role": "assistant", "content": text}
            return web.json_response({"id": f"c-{next(ids)}", "choices": [{"message": message}]})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for word in text.split(" "):
            chunk = {"choices": [{"index": 0, "delta": {"content": f"{word} "}}]}
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    return answer


async def ask(served, system, user, *, streamed):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    answer = await served.chat(messages=messages, stream=streamed)
    assert answer.status == 200


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_one_agent_hands_on_to_another_makes_a_workflow(served, engine, streamed):
    engine.answer = says(PLAN, streamed)
    await ask(served, "You plan.", "How high is it?", streamed=streamed)
    engine.answer = says("Forty metres.", streamed)

    await ask(served, "You work.", f"Do this: {PLAN}", streamed=streamed)
    await ask(served, "You work.", "Paint it.", streamed=streamed)

    planner, worker, other = (fact.request for fact in served.facts.all(Arrived))
    assert planner.workflow_id == planner.id
    assert (worker.workflow_id, worker.parent_ids) == (planner.id, (planner.id,))
    assert worker.upstream == planner.agent != worker.agent == other.agent
    assert (other.workflow_id, other.parent_ids) == (other.id, ())
    assert served.facts.all(WorkflowEnded) == []  # more may come
    assert planner.sources == Sources(agent="inferred")
    assert worker.sources == Sources("inferred", agent="inferred", upstream="inferred")


async def test_nothing_is_inferred_where_that_is_not_wanted(kairos, engine):
    engine.answer = says(PLAN, streamed=False)
    served = await kairos(engine.url, infer=False)
    await ask(served, "You plan.", "How high is it?", streamed=False)
    await ask(served, "You work.", f"Do this: {PLAN}", streamed=False)

    first, second = (fact.request for fact in served.facts.all(Arrived))
    assert (second.workflow_id, second.agent, second.parent_ids) == (second.id, None, ())
    assert [fact.workflow_id for fact in served.facts.all(WorkflowEnded)] == [first.id, second.id]


async def test_what_is_not_a_prompt_in_words_is_a_workflow_of_its_own(served):
    await served.ask("POST", "/v1/completions", json={"model": "tiny", "prompt": [1, 2, 3]})
    await served.ask("POST", "/v1/embeddings", json={"model": "tiny", "input": "Hello"})

    arrived = [fact.request.id for fact in served.facts.all(Arrived)]
    assert [fact.workflow_id for fact in served.facts.all(WorkflowEnded)] == arrived


async def test_an_answer_that_failed_leads_nowhere(served, engine):
    async def fails(request):
        body = {"choices": [{"message": {"content": PLAN}}]}
        return web.json_response(body, status=500)

    engine.answer = fails
    await served.chat(messages=[{"role": "user", "content": "How high is it?"}])
    engine.answer = says("Forty metres.", streamed=False)
    await served.chat(messages=[{"role": "user", "content": PLAN}])

    _, second = (fact.request for fact in served.facts.all(Arrived))
    assert second.workflow_id == second.id
