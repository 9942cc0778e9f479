"""The model of vLLM against a real one, in the form that CI runs."""

import asyncio
import json
import signal
import sys

import pytest

from tests.support.vllm import descendants, needs_vllm, until_gone

COMMAND = (sys.executable, "-m", "experiments.e00_fidelity", "--quick", "--json")
LIMIT_S = 900  # a slow machine, or one that has other work, too

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(LIMIT_S + 60)]


@pytest.fixture
async def experiment():
    needs_vllm()
    process = await asyncio.create_subprocess_exec(
        *COMMAND, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    yield process
    if process.returncode is None:
        process.kill()
        await process.wait()


async def test_the_model_takes_as_long_as_the_engines(experiment):
    async with asyncio.timeout(LIMIT_S):
        out, err = await experiment.communicate()
    assert experiment.returncode == 0, err.decode()
    rows = [row for row in json.loads(out) if row["load"] is not None]
    assert [row["seed"] for row in rows] == [1, 2, 3]
    assert {row["prompt_tokens_off"] for row in rows} == {0}, "the sides had different prompts"
    late, begun = (sum(row[each] for row in rows) for each in ("late_starts", "workflows"))
    assert late <= begun / 10, "the sides had different arrivals"


async def test_an_interrupted_run_leaves_no_engine(experiment):
    async with asyncio.timeout(LIMIT_S):
        said = b""
        while said.count(b"is starting") < 2:
            line = await experiment.stderr.readline()
            assert line, said.decode()
            said += line
        started = descendants(experiment.pid)
        assert len(started) >= 2
        experiment.send_signal(signal.SIGINT)
        await experiment.communicate()
    assert experiment.returncode == 130
    await until_gone(started)
