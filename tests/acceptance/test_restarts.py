"""Four cycles of three minutes, in each of which one of two real vLLM instances is killed."""

import pytest

from tests.acceptance.restarts import CYCLES, Restarts
from tests.support.vllm import needs_vllm

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(2400)]


async def test_calls_end_once_and_goodput_stays_and_returns_while_instances_are_killed(tmp_path):
    needs_vllm()
    run = Restarts(tmp_path, cycles=CYCLES, cycle_s=180, show=print)
    wrong = await run.run()

    print(f"\n{run.summary()}")
    assert wrong == []
