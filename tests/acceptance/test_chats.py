"""What counts as an answer that came whole, and when its tokens came."""

import json
import time

import msgspec
import pytest

from tests.acceptance.chats import Chats, Goodput
from tests.soak.client import call, session
from tests.support.simulate import standin as server


def asked(streamed):
    chats = Chats(
        "a", model="standin", lengths={"x": (5, 5)}, words=3, streamed=streamed, patience_s=5
    )
    return chats.single()


async def outcome(chat, goodput):
    settings = server.StandInSettings(max_num_seqs=2)
    async with server.serve(settings) as served, session() as clients:
        return await call(clients, served.url, chat, goodput.reads)


@pytest.mark.parametrize("streamed", [0, 1])
async def test_an_answer_of_full_length_counts_when_it_came(streamed):
    goodput, began = Goodput(), time.time()
    assert (await outcome(asked(streamed), goodput)).end == "answered"
    assert goodput.per_s(began - 10, began) == 0
    assert goodput.per_s(began - 5, began + 5) == pytest.approx(0.5)


@pytest.mark.parametrize("streamed", [0, 1])
async def test_an_answer_that_is_shorter_is_none(streamed):
    chat, goodput, began = asked(streamed), Goodput(), time.time()
    seen = await outcome(msgspec.structs.replace(chat, tokens=6), goodput)
    assert seen.end == "wrong answer"
    assert "not 6" in seen.detail
    assert goodput.per_s(began - 5, began + 5) == 0


async def test_nothing_counts_of_an_answer_that_breaks_off():
    chat, goodput, began = asked(1), Goodput(), time.time()
    body = json.dumps({**json.loads(chat.body), "fail": "error"}).encode()
    seen = await outcome(msgspec.structs.replace(chat, body=body), goodput)
    assert seen.end == "error in stream"
    assert goodput.per_s(began - 5, began + 5) == 0


def test_a_workflow_is_a_call_of_each_agent_after_the_one_before():
    chats = Chats(
        "a", model="m", lengths={"x": (1, 1), "y": (2, 2)}, words=1, streamed=1, patience_s=1
    )
    first, second = chats.workflow()
    assert {each.headers["X-Kairos-Workflow-Id"] for each in (first, second)} == {"a-w0"}
    assert [each.headers["X-Kairos-Agent"] for each in (first, second)] == ["x", "y"]
    assert second.headers["X-Kairos-Upstream"] == "x"
    assert (first.tokens, second.tokens, chats.made) == (1, 2, 2)
