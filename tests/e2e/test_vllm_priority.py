"""The order inside real vLLM is the one that Kairos decided."""

import asyncio

import pytest

from kairos.core import Finished, FirstToken, Progressed
from tests.e2e.deciding import deciding
from tests.support.cli.command import start_engines
from tests.support.vllm import needs_vllm

pytestmark = pytest.mark.vllm

# Room for one at a time: who comes later waits inside vLLM.
OPTIONS = ("--scheduling-policy", "priority", "--max-num-seqs", "1")
DECIDED = {"running": 0, "late": 5, "middle": 0, "early": -4}  # in order of arrival
BLOCKING, SHORT = 800, 5  # tokens
HELLO = [{"role": "user", "content": "Hello"}]
ANSWER_S = 120  # on a machine that is busy with other things


async def test_calls_that_wait_inside_vllm_go_by_what_was_decided_whatever_their_bodies_say(kairos):
    needs_vllm()
    async with start_engines("vllm", 1, options=OPTIONS) as urls:
        served = await kairos(*urls, max_num_seqs=8)
        deciding(served, DECIDED.__getitem__)

        async def ask(name, tokens):
            # What the client says, in the header or in the body, is the opposite.
            priority = -DECIDED[name]
            headers = {"X-Request-Id": name, "X-Vllm-Priority": str(priority)}
            fields = {"max_tokens": tokens, "ignore_eos": True, "stream": True}
            body = {"model": "tiny", "messages": HELLO, "priority": priority} | fields
            url = f"{served.url}/v1/chat/completions"
            async with (
                asyncio.timeout(ANSWER_S),
                served._session.post(url, json=body, headers=headers) as response,
            ):
                await response.read()
                return response.status

        calls = [asyncio.create_task(ask("running", BLOCKING))]
        await served.facts.seen(FirstToken)
        for name in ("late", "middle", "early"):
            calls.append(asyncio.create_task(ask(name, SHORT)))
            await served.facts.until(lambda n=name: n in served.balancer.ledger)
        answers = await asyncio.gather(*calls)

    assert set(answers) == {200}
    ended = [fact.request_id for fact in served.facts.all(Finished)]
    assert ended == ["running", "early", "middle", "late"]
    facts = [fact.completion_tokens for fact in served.facts.all(Progressed)]
    told = [each["running"] for each in facts if "running" in each]
    assert told, "an answer of this length takes seconds"
    assert told == sorted(told)
    assert 1 < max(told) <= BLOCKING
