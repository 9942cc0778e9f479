"""`kairos plan-autoscale` before a running Kairos, with engines that it starts and stops itself."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import aiohttp

from kairos.core import Arrived, InstanceJoined
from tests.e2e.engines.test_instances import instances
from tests.e2e.test_health_command import run
from tests.support.ports import free_ports
from tests.support.processes import Process
from tests.support.waiting import until

QUICK = """
every_s = 1.0
engine = {{ max_num_seqs = 4 }}
[pool]
least = 1
most = 2
start_s = 1
calm_s = 3
utilisation = 1
seats = 1
[commands]
start = ["{python}", "-m", "kairos.simulate.standin.server", "--port", "{{port}}"]
url = "http://127.0.0.1:{{port}}"
ports = [{port}, {port}]
log = "{log}"
"""


def scaling_file(tmp_path, port):
    path = tmp_path / "scaling.toml"
    path.write_text(QUICK.format(python=sys.executable, port=port, log=tmp_path / "logs"))
    return path


def pids(port):
    """Of engines that were started on the port."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (directory / "cmdline").read_bytes().split(b"\0")
            if b"kairos.simulate.standin.server" in words and str(port).encode() in words:
                found.append(int(directory.name))
    return found


@contextmanager
def no_engine_left(port):
    try:
        yield
    finally:
        for pid in pids(port):
            os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def holding(served, number):
    """So many calls in flight, which wait for as long as it takes."""
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def call():
            body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
            async with session.post(f"{served.url}/v1/chat/completions", json=body) as answer:
                await answer.read()
                return answer.status

        calls = [asyncio.create_task(call()) for _ in range(number)]
        await served.facts.seen(Arrived, number)
        try:
            yield calls
            assert await asyncio.gather(*calls) == [200] * number
        finally:
            for each in calls:
                each.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


async def test_it_says_what_to_do_and_why_and_does_nothing(served, engine, tmp_path):
    engine.answer = engine.when_released
    file = scaling_file(tmp_path, free_ports(1)[0])
    admin = ("--url", served.service.admin_url)
    async with holding(served, 3):
        status, said = await run("plan-autoscale", *admin, "--file", str(file), "--once")
        engine.release(3)
    assert status == 0
    assert "1 serve, 0 start, 0 drain" in said
    assert "start 1 (2." in said
    assert "needed): 3 calls in flight, 3 in 1 s" in said
    assert len(await instances(served)) == 1


async def test_without_a_file_it_reckons_with_what_memory_tells(served):
    status, said = await run("plan-autoscale", "--url", served.service.admin_url, "--once")
    assert status == 0
    assert "keep them" in said


async def test_a_service_that_is_not_there_is_named(unused_port):
    url = f"http://127.0.0.1:{unused_port}"
    status, said = await run("plan-autoscale", "--url", url, "--once")
    assert status == 1
    assert url in said


async def test_to_drive_it_must_know_how_engines_start(served):
    status, said = await run("plan-autoscale", "--url", served.service.admin_url, "--drive")
    assert status == 1
    assert "[commands] or [kubernetes]" in said


@asynccontextmanager
async def driven(kairos, engine, tmp_path, **given):
    """A pool that has got a second engine on the port, since three calls are held; and all that."""
    served = await kairos(engine.url, max_num_seqs=2)
    engine.answer = engine.when_released
    (port,) = free_ports(1)
    options = ("--url", served.service.admin_url, "--file", scaling_file(tmp_path, port), "--drive")
    scaling = Process(tmp_path, "autoscale", "plan-autoscale", *options, **given)
    async with holding(served, 3) as calls:
        with no_engine_left(port), scaling as scaler:
            await until(lambda: len(served.facts.all(InstanceJoined)) == 2)
            yield served, scaler, port, calls


async def test_an_engine_is_added_when_work_comes_and_drained_and_stopped_when_it_is_done(
    kairos, engine, tmp_path
):
    async with driven(kairos, engine, tmp_path, fresh=True) as (served, scaler, port, calls):
        assert served.facts.all(InstanceJoined)[1].instance.id == f"127.0.0.1:{port}"
        await scaler.until_it_says("serves,")
        engine.release(3)
        await asyncio.gather(*calls)
        await scaler.until_it_says("has drained, and is stopped")
        assert len(await instances(served)) == 1
        assert pids(port) == []
        assert (tmp_path / "logs" / f"{port}.log").read_text()


async def test_interrupted_it_leaves_the_pool_as_it_is(kairos, engine, tmp_path):
    async with driven(kairos, engine, tmp_path) as (served, scaler, port, calls):
        os.killpg(scaler.pid, signal.SIGINT)
        await until(lambda: scaler.ended)
        assert "the pool stays as it is" in scaler.said
        assert len(pids(port)) == 1
        assert len(await instances(served)) == 2
        engine.release(3)
        await asyncio.gather(*calls)


async def test_interrupted_it_carries_out_what_it_has_begun(engine, tmp_path):
    engine.answer = engine.when_released
    with Process(tmp_path, "autoscale", "plan-autoscale", "--url", engine.url) as scaler:
        await engine.called()
        os.killpg(scaler.pid, signal.SIGINT)
        engine.release()
        await until(lambda: scaler.ended)
        assert "nothing is changed" in scaler.said
        assert "the pool stays as it is" in scaler.said


async def test_interrupted_again_it_leaves_what_it_has_begun(engine, tmp_path):
    engine.answer = engine.when_released
    with Process(tmp_path, "autoscale", "plan-autoscale", "--url", engine.url) as scaler:
        await engine.called()

        def is_left():
            os.killpg(scaler.pid, signal.SIGINT)
            return scaler.ended

        await until(is_left)
        assert "nothing is changed" not in scaler.said
