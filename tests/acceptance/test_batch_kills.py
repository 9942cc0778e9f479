"""10,000 lines of a batch, while each kind of process that one passes through is killed."""

import pytest

from tests.acceptance.batch_deployments import OnKafka, OnOneHost
from tests.acceptance.batch_kills import LINES, BatchKills

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(3000)]


@pytest.mark.parametrize("deployed", [OnKafka, OnOneHost])
async def test_a_batch_of_10000_lines_loses_none_and_has_none_twice_whatever_dies(
    tmp_path, deployed
):
    with deployed(tmp_path / "run") as deployment:
        run = BatchKills(deployment, lines=LINES, show=print)
        wrong = await run.run()
        print(f"\n{run.summary()}")
        assert wrong == [], deployment.state()
