"""Workflows whose reply nobody wants any more."""

import asyncio
import json

from kairos.core import Arrived, Cancelled, Failed, Finished, FirstToken, WorkflowEnded
from tests.e2e.test_failures import CHUNK, DONE, STREAM

OF = {"x-kairos-workflow-id": "w"}


def ask(served, name, **fields):
    headers = OF | {"x-request-id": name}
    return asyncio.create_task(served.chat(headers=headers, **fields))


async def cancel(served, workflow="w"):
    return await served.ask("DELETE", f"/v1/workflows/{workflow}")


async def test_its_calls_end_wherever_they_are_and_no_other(kairos, engines):
    one, other = await engines(), await engines()
    served = await kairos(one.url, other.url, max_num_seqs=1)
    one.answer = other.answer = one.stream(CHUNK, DONE)
    one.release()
    streaming = ask(served, "streaming", **STREAM)
    await served.facts.seen(FirstToken)
    one.answer = other.answer = one.when_released
    unanswered = ask(served, "unanswered")
    await served.facts.until(lambda: len(served.balancer.ledger) == 2)
    waiting = ask(served, "waiting")
    await served.facts.seen(Arrived, 3)
    stranger = asyncio.create_task(served.chat())
    await served.facts.seen(Arrived, 4)

    answer = await cancel(served)

    assert (answer.status, answer.json()["id"]) == (200, "w")
    for call in (unanswered, waiting):
        assert ((await call).status, (await call).error()["code"]) == (410, "workflow_cancelled")
    said = (await streaming).body.removeprefix(CHUNK)
    assert json.loads(said.removeprefix(b"data: ").partition(b"\n")[0])["error"]["code"] == (
        "workflow_cancelled"
    )
    assert said.endswith(DONE)
    await one.until(lambda: one.lost + other.lost == 2)
    one.release(4)
    assert (await stranger).status == 200
    assert {each.request_id for each in served.facts.all(Cancelled)} == {"streaming", "unanswered"}
    assert [each.reason for each in served.facts.all(Failed)] == ["workflow_cancelled"]
    assert len(served.facts.all(Finished)) == 1


async def test_no_more_calls_of_it_are_served(served, engine):
    await ask(served, "first")
    await cancel(served)

    refused = await ask(served, "second")

    assert (refused.status, refused.headers["x-kairos-reason"]) == (410, "workflow_cancelled")
    assert (await served.chat(headers={"x-kairos-workflow-id": "v"})).status == 200
    assert len(engine.calls) == 2


async def test_what_it_would_have_needed_is_not_learnt(served):
    await ask(served, "first")
    await cancel(served)
    orchestrator = served.service.brain.orchestrator
    [workflow] = orchestrator.take_ended()

    assert workflow.cancelled
    assert not [each for each in workflow.lessons() if not isinstance(each, tuple)]


async def test_cancelling_it_again_or_one_that_never_was_changes_nothing(served):
    await ask(served, "first")
    answers = [await cancel(served) for _ in range(2)]

    assert [each.status for each in answers] == [200, 200]
    assert answers[0].body == answers[1].body
    assert len(served.facts.all(WorkflowEnded)) == 1
    assert (await cancel(served, "never")).error()["code"] == "workflow_not_found"
