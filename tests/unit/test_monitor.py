import asyncio

import pytest

from kairos.balancer import Balancer
from kairos.dispatcher.placements import LeastKv
from kairos.errors import UpstreamUnreachable
from kairos.live.clock import WallClock
from kairos.live.engine import HttpEngine, Upstream
from kairos.live.monitor import Monitor, Target
from kairos.runtime import Runtime
from kairos.scheduler.policies import Fcfs


@pytest.mark.parametrize("steps", range(6))
async def test_a_suspicion_at_the_moment_of_the_end_does_not_keep_the_monitor_alive(steps):
    upstream = Upstream("nowhere", "http://127.0.0.1:9")
    runtime = Runtime(Balancer(Fcfs, LeastKv), HttpEngine([upstream]), WallClock())
    monitor = Monitor(runtime.feed, [Target(upstream, 1, None)])
    running = asyncio.create_task(monitor.run())
    while monitor.problems["nowhere"] == "not probed yet":
        await asyncio.sleep(0)
    await asyncio.sleep(0)

    monitor.hear_of(UpstreamUnreachable("nowhere", "a test", refused=False))
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()

    done, _ = await asyncio.wait([running], timeout=5)
    assert done, "the monitor goes on"
