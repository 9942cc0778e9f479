"""Which calls are refused as they arrive, where there is more to do than can be done."""

import asyncio

from kairos.core import SECOND, Arrived, ProfilesLearnt, Refuse
from tests.support.core import learnt


async def test_a_workflow_under_way_takes_the_place_of_one_that_has_not_begun(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=1, max_waiting=1)
    engine.answer = engine.when_released

    def ask(workflow, **fields):
        headers = {"x-kairos-workflow-id": workflow}
        return asyncio.create_task(served.chat(headers=headers, **fields))

    runs = ask("begun")
    await engine.called()
    new = ask("new")
    await served.facts.seen(Arrived, 2)
    assert (await ask("newer")).error()["code"] == "queue_full"

    goes_on = ask("begun")
    refused = await new

    assert (refused.status, refused.headers["x-kairos-reason"]) == (429, "queue_full")
    assert int(refused.headers["retry-after"]) >= 1
    assert "workflows that have begun take precedence" in refused.error()["message"]
    assert (await ask("begun")).status == 429  # there is nobody left to give way
    engine.release(2)
    assert [(await each).status for each in (runs, goes_on)] == [200, 200]
    metrics = (await served.ask("GET", "/metrics")).body
    assert b'kairos_errors_total{code="queue_full"} 3.0\n' in metrics
    assert b'kairos_calls_total{outcome="refused"} 1.0\n' in metrics


async def test_a_call_whose_deadline_cannot_be_met_is_not_begun(served, engine):
    profile = learnt.profile("slow", [60 * SECOND], app="a", tenant="default")
    served.service.brain.feed(ProfilesLearnt((profile,)))
    who = {"x-kairos-app": "a", "x-kairos-agent": "slow"}

    refused = await served.chat(headers=who | {"x-kairos-deadline-ms": "20000"})

    assert (refused.status, refused.headers["x-kairos-reason"]) == (504, "deadline_exceeded")
    assert "it would finish in 30 s at the earliest" in refused.error()["message"]
    assert engine.calls == []
    [given_up] = [e for r in served.facts.records for e in r.commands if isinstance(e, Refuse)]
    assert given_up.reason == "too_late"
    assert (await served.chat(headers=who | {"x-kairos-deadline-ms": "40000"})).status == 200
    metrics = (await served.ask("GET", "/metrics")).body
    assert b'kairos_errors_total{code="deadline_exceeded"} 1.0\n' in metrics
    assert b'kairos_calls_total{outcome="refused"} 1.0\n' in metrics
