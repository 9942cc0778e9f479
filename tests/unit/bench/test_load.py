"""What the clients of the benches ask, and what the engines of the benches tell."""

import asyncio
import sys
import time

import msgspec
import pytest

from bench import load, servers, talk, upstream
from bench.load import Control
from bench.systems import free_ports, upstream_command
from bench.upstream import Mode
from kairos.live.engines.engine_status import read_metrics


def body_of(request: bytes) -> dict:
    return msgspec.json.decode(request.partition(b"\r\n\r\n")[2])


def head_of(request: bytes) -> bytes:
    return request.partition(b"\r\n\r\n")[0]


def test_five_named_calls_are_a_workflow():
    made = talk.Named()
    workflows = [head_of(made.ask(number)).split(b"workflow-id: ")[1][:17] for number in range(10)]
    assert [workflows.count(each) for each in workflows] == [5] * 10


def test_anonymous_calls_have_2_kib_of_their_own_and_no_identity():
    new_client = talk.anonymous()
    asked = [new_client().ask(number) for number in range(3)]
    texts = {body_of(each)["messages"][0]["content"] for each in asked}
    assert len(texts) == 3
    assert all(len(text) == talk.PROMPT_BYTES for text in texts)
    assert not any(b"x-kairos" in head_of(each) for each in asked)


def test_a_conversation_goes_on_after_what_was_answered():
    made = talk.conversations()()
    before: list[dict[str, str]] = []
    lengths, sizes = [], []
    for number in range(talk.TURNS):
        messages = body_of(made.ask(number))["messages"]
        assert messages[: len(before)] == before
        made.hear(upstream.ANSWER % (number, number))
        answer = {"role": "assistant", "content": f"answer {number:08d}: " + "word " * 14}
        before = [*messages, answer]
        lengths.append(len(messages))
        sizes.append(sum(len(each["content"]) for each in messages))
    assert sum(lengths) / len(lengths) == 20
    assert 18_000 < sum(sizes) / len(sizes) < 22_000
    assert body_of(made.ask(talk.TURNS))["messages"][0] != before[0]  # another one begins


def test_the_engines_metrics_say_how_much_they_hold_and_run():
    engine = upstream.Engine()
    engine.running = 100
    found = read_metrics("one", engine.metrics())
    assert found.cache is not None
    assert found.cache.kv_tokens == (upstream.KV_BLOCKS - 1) * 16
    assert found.status is not None
    assert found.status.running == 100
    assert found.status.kv_used == pytest.approx(100 * 33 / 20_000)


async def test_engines_answer_each_call_differently_after_the_delay_that_they_are_told():
    ports = free_ports(2)
    command = upstream_command(ports, metrics=True)
    async with (
        servers.server(command, ports[0], None) as server,
        load.connected(ports[0]) as first,
        load.connected(ports[1]) as second,
    ):
        control = Control(second)
        asked = talk.chat(1, stream=False)
        assert await first.send(asked) != await first.send(asked)
        await control.set(Mode(delay_s=0.2))
        began = time.monotonic()
        await first.send(asked)
        assert time.monotonic() - began >= 0.2
        assert (await control.seen()).calls == 3
        assert b"vllm:cache_config_info" in await first.send(talk.http(b"GET", b"/metrics"))
        assert set(server.cpu_s_by_process()) == {server.pid}


@pytest.mark.long
async def test_cpu_time_is_that_of_all_threads_and_descendants_finer_than_a_tick():
    burn = "import time\nwhile time.process_time() < {}: pass\n"
    code = (
        "import subprocess, sys, threading, time\n"
        f"code = {burn.format(0.3)!r} + 'time.sleep(60)'\n"
        "child = subprocess.Popen([sys.executable, '-c', code])\n"
        f"thread = threading.Thread(target=exec, args=({burn.format(0.3)!r},))\n"
        "thread.start(); thread.join()\n"
        "time.sleep(60)\n"
    )

    async def burnt(_: int) -> bool:
        await asyncio.sleep(1.0)
        return True

    async with servers.server([sys.executable, "-c", code], 0, None, burnt) as made:
        async with asyncio.timeout(60):
            while (taken := made.cpu_s()) < 0.6:
                await asyncio.sleep(0.1)
        assert len(made.cpu_s_by_process()) == 2
        assert taken < 2
        assert taken * 100 != int(taken * 100)
