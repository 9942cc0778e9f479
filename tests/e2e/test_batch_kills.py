"""A batch of some hundred lines, while some of the processes that it passes through are killed.
With 10,000 lines, and all of them: `tests/acceptance/test_batch_kills.py`."""

import pytest

from tests.acceptance.batch_deployments import OnKafka, OnOneHost
from tests.acceptance.batch_kills import BatchKills

pytestmark = pytest.mark.timeout(400)


async def judge(deployment, lines, *blows):
    run = BatchKills(deployment, lines=lines, show=print, blows=blows)
    with deployment:
        wrong = await run.run()
        print(run.summary())
        assert wrong == [], deployment.state()


async def test_with_workers_a_batch_outlives_the_worker_that_drives_and_the_decider(tmp_path):
    await judge(OnOneHost(tmp_path / "run"), 500, "the worker that drives", "the decider")


@pytest.mark.smoke
@pytest.mark.kafka
async def test_on_kafka_a_batch_outlives_the_balancer_the_broker_and_the_gateway_that_drives(
    tmp_path,
):
    blows = ("the balancer", "the broker", "the gateway that drives")
    await judge(OnKafka(tmp_path / "run", broker_down_s=5), 400, *blows)
