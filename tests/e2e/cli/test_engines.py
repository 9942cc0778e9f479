"""Engines as child processes: they answer, and nothing keeps one alive that should have ended.

An engine's end is seen from outside: the kernel closes the connection that we hold to it.
"""

import asyncio
import signal
import sys
from contextlib import suppress
from operator import mul
from urllib.parse import urlsplit

import aiohttp
import pytest
from openai import AsyncOpenAI

from examples.minilm import write_minilm
from kairos.cli.demos import engines
from kairos.cli.demos.engines import start_engines
from kairos.core import SetupError
from kairos.engines import engine_process
from kairos.host import start_child

LIMIT_S = 60
PARENT = """
import asyncio
from kairos.cli.demos.engines import start_engines

async def main():
    async with start_engines("sim", 1) as urls:
        print(urls[0], flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
STUBBORN = """
import signal, socket, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
server = socket.create_server(("127.0.0.1", 0))
subprocess.Popen(["sleep", "1000"])
print(f"ready http://127.0.0.1:{server.getsockname()[1]}", flush=True)
time.sleep(1000)
"""
STUBBORN_CHILD = STUBBORN.replace("print", "signal.signal(signal.SIGTERM, signal.SIG_DFL)\nprint")


@pytest.fixture
def engine_is(tmp_path, monkeypatch):
    """Call it with the source of a module to be run in the stand-in's place."""

    def replace(source):
        (tmp_path / "replacement.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setitem(engines.MODULES, "sim", "replacement")

    return replace


async def reply(url: str, model: str) -> str:
    body = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=body) as response,
    ):
        assert response.status == 200
        return (await response.json())["choices"][0]["message"]["content"]


class Watch:
    """A connection to an engine. Open it while the engine serves."""

    @classmethod
    async def open(cls, url):
        watch = cls()
        address = urlsplit(url)
        watch.reader, watch.writer = await asyncio.open_connection(address.hostname, address.port)
        return watch

    async def ended(self):
        # A connection that the engine had not accepted yet is reset rather than closed.
        async with asyncio.timeout(LIMIT_S):
            with suppress(ConnectionResetError):
                assert await self.reader.read() == b""
        self.writer.close()


async def test_engines_answer_while_the_block_runs_and_end_with_it(monkeypatch):
    monkeypatch.setattr(
        engine_process, "GRACE_S", 1000
    )  # not needed by an engine that heeds SIGTERM
    progress = []
    async with start_engines("sim", 2, on_progress=progress.append) as urls:
        assert len(set(urls)) == 2
        assert all([await reply(url, "standin") for url in urls])
        watched = [await Watch.open(url) for url in urls]
    for engine in watched:
        await engine.ended()
    assert [line.split(" is ")[0] for line in progress] == ["sim engine 1", "sim engine 2"] * 2


async def test_an_exception_in_the_block_ends_the_engines_and_is_passed_on():
    engine = None
    try:
        async with start_engines("sim", 1) as urls:
            engine = await Watch.open(urls[0])
            _ = 1 / 0
    except ZeroDivisionError:
        await engine.ended()
    else:
        pytest.fail("the exception was lost")


async def cancelled_engine(times):
    """An engine whose block was cancelled so many times, and the task that holds the block."""
    urls = asyncio.Queue()

    async def hold():
        async with start_engines("sim", 1) as started:
            urls.put_nowait(started[0])
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    engine = await Watch.open(await urls.get())
    for _ in range(times):
        task.cancel()
        for _ in range(10):  # let it get as far as it can: to wait for the engine's end
            await asyncio.sleep(0)
    return engine, task


async def test_cancelling_the_block_ends_the_engine():
    engine, task = await cancelled_engine(times=1)
    await engine.ended()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelling_twice_ends_a_stubborn_engine_without_the_grace(engine_is, monkeypatch):
    engine_is(STUBBORN)
    monkeypatch.setattr(engine_process, "GRACE_S", 1000)
    engine, task = await cancelled_engine(times=2)
    await engine.ended()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_an_engine_ends_when_its_parent_is_ended_by(number):
    parent = await start_child(
        *(sys.executable, "-c", PARENT),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(LIMIT_S):
        engine = await Watch.open((await parent.stdout.readline()).decode().strip())
    parent.send_signal(number)
    await engine.ended()
    assert await parent.wait() != 0


@pytest.mark.parametrize("source", [STUBBORN, STUBBORN_CHILD])
async def test_what_ignores_sigterm_is_ended_after_the_grace(source, engine_is, monkeypatch):
    engine_is(source)
    monkeypatch.setattr(engine_process, "GRACE_S", 0.1)
    # The engine's child holds its output open, so the block cannot end before both have.
    async with asyncio.timeout(LIMIT_S):
        async with start_engines("sim", 1):
            pass


async def test_an_engine_that_cannot_start_is_reported_with_what_it_said():
    with pytest.raises(SetupError, match=r"(?s)sim engine 1 ended .*unrecognized arguments: --no"):
        async with start_engines("sim", 2, options=["--no-such-option"]):
            pytest.fail("the block must not run")


async def test_an_engine_that_never_gets_ready_is_given_up(engine_is, monkeypatch):
    engine_is("import time; time.sleep(1000)")
    monkeypatch.setitem(engines.START_S, "sim", 0.3)
    with pytest.raises(SetupError, match="sim engine 1 is not ready after"):
        async with start_engines("sim", 1):
            pytest.fail("the block must not run")


async def test_a_model_file_that_is_not_there_is_named():
    with pytest.raises(SetupError, match=r"there is no model file /no/such\.gguf: give --model"):
        async with start_engines("llama", 1, options=["--model", "/no/such.gguf"]):
            pytest.fail("the block must not run")


@pytest.mark.real
async def test_a_real_model_answers():
    async with start_engines("llama", 1) as urls:
        assert (await reply(urls[0], "smollm2-135m")).strip()


@pytest.mark.real
async def test_a_real_model_embeds_as_its_authors_say(tmp_path):
    """Their example: https://www.sbert.net/examples/sentence_transformer/applications"""
    write_minilm(tmp_path / "minilm.gguf")
    options = ("--model", str(tmp_path / "minilm.gguf"), "--alias", "minilm", "--embeds")
    texts = ["A man is eating food.", "A man is eating a piece of bread.", "A monkey plays drums."]
    async with (
        start_engines("llama", 1, options=options) as (url,),
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
    ):
        answer = await client.embeddings.create(model="minilm", input=texts)

    food, bread, drums = (each.embedding for each in answer.data)
    assert sum(map(mul, food, food)) == pytest.approx(1, abs=1e-3)
    assert sum(map(mul, food, bread)) == pytest.approx(0.755, abs=0.005)
    assert sum(map(mul, food, drums)) < 0.2


async def test_an_engine_that_writes_a_line_without_end_serves(engine_is):
    engine_is("print('x' * (1 << 20), flush=True)\n" + STUBBORN)
    async with asyncio.timeout(LIMIT_S):
        async with start_engines("sim", 1) as (url,):
            watch = await Watch.open(url)
        await watch.ended()


async def test_of_an_engine_that_fails_only_the_end_of_a_long_line_is_told(engine_is):
    engine_is("print('x' * (1 << 20) + ' no memory')\nraise SystemExit(1)")
    with pytest.raises(SetupError, match="no memory") as raised:
        async with start_engines("sim", 1):
            pass
    assert len(str(raised.value)) < 10_000
