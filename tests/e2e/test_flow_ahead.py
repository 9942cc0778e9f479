"""What an invocation has computed ahead, before engines that others ask, too."""

import asyncio
import json

import pytest

from kairos.core import Arrived
from tests.e2e.batch_files import key
from tests.e2e.flows import answers, invoke, kept_in, put
from tests.support.simulate import standin as standins

RULES = "You judge what is said of a report, and you say why in a few words. " * 30
JUDGED = f"""
flow: judged
operators:
  row: {{kind: input}}
  said: {{kind: llm, prompt: "Summarise: {{{{ row.text }}}}", max_tokens: 400}}
  verdict:
    kind: llm
    system: {json.dumps(RULES)}
    prompt: "{{{{ said }}}}"
    max_tokens: 20
outputs: {{verdict: verdict}}
"""


def name_of(call):
    """What reached the engine: the client's own call, or an operator's, or what is ahead of it."""
    body = json.loads(call.body)
    if body.get("continue_final_message"):
        return "ahead"
    text = body["messages"][-1]["content"]
    return "client" if text == "Hello" else "said" if text.startswith("Summarise") else "verdict"


@pytest.fixture
def held(engine):
    """An engine that answers one call at each release."""
    answer = answers(engine).answer

    async def when_released(request):
        await engine.turns.acquire()
        return await answer(request)

    engine.answer = when_released
    return engine


async def test_what_is_computed_ahead_does_not_delay_a_call_that_comes_after_it(
    kairos, held, tmp_path
):
    flows = kept_in(tmp_path / "flows")
    served = await kairos(held.url, flows=flows, policy="fcfs", max_num_seqs=1)
    await put(served, JUDGED, "judged")
    invoked = asyncio.create_task(invoke(served, {"text": "x"}, "judged"))
    await held.called(1)
    await served.facts.until(lambda: served.balancer.waiting == 1)  # what is ahead
    client = asyncio.create_task(served.chat())
    await served.facts.until(lambda: served.balancer.waiting == 2)
    held.release(9)

    assert (await client).status == (await invoked).status == 200
    names = [name_of(call) for call in held.calls]
    assert [each for each in names if each != "ahead"] == ["said", "client", "verdict"]
    assert names[:2] == ["said", "client"]


async def test_what_is_computed_ahead_goes_where_nobody_else_is(kairos, held, tmp_path):
    flows = kept_in(tmp_path / "flows")
    served = await kairos(held.url, flows=flows, max_num_seqs=8)
    await put(served, JUDGED, "judged")
    invoked = asyncio.create_task(invoke(served, {"text": "x"}, "judged"))
    await held.called(2)
    held.release(9)

    assert (await invoked).status == 200
    names = [name_of(call) for call in held.calls]
    assert (sorted(names[:2]), names[2:]) == (["ahead", "said"], ["verdict"])


async def test_nothing_is_computed_ahead_for_engines_without_a_prefix_cache(kairos, tmp_path):
    # The stand-in says so in its figures, as vLLM does.
    async with standins.serve(standins.StandInSettings(model="tiny")) as engine:
        served = await kairos(engine.url, flows=kept_in(tmp_path / "flows"))
        kept = JUDGED.replace("400}", "400, on_cut: keep}").replace(
            " 20\n", " 20\n    on_cut: keep\n"
        )
        await put(served, kept, "judged")
        assert (await invoke(served, {"text": "x"}, "judged")).status == 200
    agents = [fact.request.agent for fact in served.facts.all(Arrived)]
    assert agents == ["said", "verdict"]


async def test_nothing_is_computed_ahead_for_a_key_that_may_not_ask_for_what_is_spare(
    kairos, held, tmp_path
):
    flows, acme = kept_in(tmp_path / "flows"), key("acme", service_classes=("standard",))
    served = await kairos(held.url, flows=flows, key=(acme,), max_num_seqs=8)
    headers = {"authorization": "Bearer acme"}
    await put(served, JUDGED, "judged", headers=headers)
    held.release(9)

    assert (await invoke(served, {"text": "x"}, "judged", headers=headers)).status == 200
    assert [name_of(call) for call in held.calls] == ["said", "verdict"]
