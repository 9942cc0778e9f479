"""`kairos plan-autoscale --drive` before real vLLM: it starts one more, and drains it, by its own
decision, and every call of before, meanwhile and after ends whole."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial

import openai
import pytest

from kairos.core import Bounced, Cancelled, Dispatch, Failed, Finished, InstanceJoined, InstanceLeft
from tests.e2e.engines.test_instances import instances
from tests.support.ports import free_ports
from tests.support.processes import Process
from tests.support.vllm import READY_S, descendants, until_gone

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2 * READY_S)]

MODEL = "tiny"
TOKENS = 150
SEQS, BUSY, QUIET = 4, 8, 2  # of one engine; calls at a time that two need, and that one serves
SCALING = """
every_s = 1.0
ready_s = {ready_s}
# How quick it is, as a profile would say: until calls tell, it would be taken for slow, and be left
# idle while the first has room.
engine = {{max_num_seqs = {seqs}, token_us = 1000}}
[pool]
least = 1
most = 2
start_s = 2
calm_s = 5
utilisation = 1
slack = 0.3
seats = {seqs}
[commands]
start = ["{python}", "-m", "kairos.engines.vllm", "--number", "2", "--port", "{before}"]
url = "http://127.0.0.1:{{port}}"
ports = [{port}, {port}]
log = "{log}"
"""


def scaling_file(tmp_path, port):
    path = tmp_path / "scaling.toml"
    said = {"ready_s": READY_S, "seqs": SEQS, "python": sys.executable, "log": tmp_path / "logs"}
    # The port that it is told is that of the first instance; it is the second.
    path.write_text(SCALING.format(port=port, before=port - 1, **said))
    return path


async def calling(client, ended, name, goes_on):
    """Streams one after the other while it is to go on. Each has all its tokens, or it raises."""
    number = 0
    while goes_on():
        number += 1
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"{name} {number}"}],
            max_tokens=TOKENS,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        usage = [chunk.usage async for chunk in stream][-1]
        assert usage.completion_tokens == TOKENS
        ended.append(name)


@asynccontextmanager
async def load(url):
    """`(said, ended)`: `said["calls"]` at a time from now on; `ended`: those that have."""
    said, ended = {"calls": BUSY}, []
    client = openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=READY_S
    )

    def goes_on(number):
        return number < said["calls"]

    async with client, asyncio.TaskGroup() as tasks:
        for number in range(BUSY):
            tasks.create_task(calling(client, ended, f"n{number}", partial(goes_on, number)))
        yield said, ended
        said["calls"] = 0


@contextmanager
def no_engine_left(scaler):
    """Engines outlive whoever started them."""
    try:
        yield
    finally:
        for pid in descendants(scaler.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def sent_to(served, instance_id):
    """Ids of calls."""
    return {
        command.request_id
        for record in served.facts.records
        for command in record.commands
        if isinstance(command, Dispatch) and command.instance_id == instance_id
    }


async def test_g11_one_more_real_vllm_serves_by_its_decision_and_drains_and_no_call_is_lost(
    kairos, vllm, tmp_path
):
    served = await kairos(vllm[0], max_num_seqs=SEQS)
    (port,) = free_ports(1)
    added = f"127.0.0.1:{port}"
    options = ("--url", served.service.admin_url, "--file", scaling_file(tmp_path, port), "--drive")
    scaling = Process(tmp_path, "autoscale", "plan-autoscale", *options)
    async with load(served.url) as (said, ended):
        with scaling as scaler, no_engine_left(scaler):
            await scaler.until_it_says("serves,", limit_s=READY_S)
            engine = descendants(scaler.pid)
            assert served.facts.all(InstanceJoined)[-1].instance.id == added
            said["calls"] = QUIET
            await scaler.until_it_says("drains", limit_s=READY_S)
            before = len(ended)
            await scaler.until_it_says("has drained, and is stopped", limit_s=READY_S)
            await until_gone(engine - {scaler.pid})
            assert len(await instances(served)) == 1
    assert [fact.instance_id for fact in served.facts.all(InstanceLeft)] == [added]
    assert served.facts.all(Bounced, Failed, Cancelled) == []
    ends = [fact.request_id for fact in served.facts.all(Finished)]
    assert len(ends) == len(ended) > before
    assert sent_to(served, added) & {*ends}
