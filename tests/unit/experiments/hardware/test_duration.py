"""G2: the slowest resource decides, and everything else is added; queues by Erlang."""

import math

import pytest

from experiments.hardware.duration import cost, duration
from kairos.errors import SetupError
from kairos.planner.queueing import erlang_c, in_system, mean_wait_s

WORK = {"flop": 4e12, "bytes": 6e9, "network": 1e9}
RATES = {"flop": 2e12, "bytes": 2e9, "network": 1e9}


def test_g2_time_is_that_of_the_slowest_resource_and_what_is_added():
    found = duration(WORK, RATES, latency=0.5, transfer=0.25, synchronisation=0.125, queueing=1.0)
    assert found.resources == {"flop": 2.0, "bytes": 3.0, "network": 1.0}
    assert found.bottleneck == "bytes"
    assert found.total == 3.0 + 0.5 + 0.25 + 0.125 + 1.0


def test_g2_work_that_hardware_cannot_do_is_refused():
    with pytest.raises(SetupError, match="work for 'flop', which this hardware does not have"):
        duration({"flop": 1.0}, {"bytes": 1.0})
    assert duration({"flop": 0.0}, {}).total == 0.0
    assert duration({"flop": 0.0}, {}).bottleneck is None


def test_g2_the_cost_is_of_all_resources_and_the_transfer():
    prices = {"flop": 1e-12, "bytes": 1e-9}
    assert cost(WORK, prices, transfer=2.0, usd_per_transfer=0.5) == pytest.approx(4 + 6 + 1)


def test_one_server_of_exponential_service_waits_as_is_known():
    assert mean_wait_s(1, 0.5, 1.0) == pytest.approx(1.0)  # rho / (mu - lambda)
    assert mean_wait_s(1, 0.5, 1.0, service_cv2=0.0) == pytest.approx(0.5)  # M/D/1
    assert mean_wait_s(1, 1.0, 1.0) == math.inf
    assert mean_wait_s(3, 0.0, 1.0) == 0.0


def test_two_servers_wait_as_is_known():
    # M/M/2 at 3/4: C = 2 rho^2 / (1 + rho) with rho = 3/4
    assert erlang_c(2, 1.5) == pytest.approx(2 * 0.75**2 / 1.75)
    assert mean_wait_s(2, 1.5, 1.0) == pytest.approx(erlang_c(2, 1.5) / 0.5)
    assert erlang_c(2, 2.0) == 1.0
    assert erlang_c(2, 0.0) == 0.0


def test_many_servers_do_not_overflow():
    assert 0 < erlang_c(100_000, 99_900.0) < 1


def test_littles_law():
    assert in_system(2.0, 3.0) == 6.0
