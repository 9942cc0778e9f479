"""Real time: epoch microseconds that never run backwards."""

import time
from types import SimpleNamespace

import pytest

from kairos.core import SECOND
from kairos.host import WallClock, clock


@pytest.fixture
def clocks(monkeypatch):
    """The operating system's two clocks, to be set by hand, in nanoseconds."""
    fake = SimpleNamespace(wall=1_700_000_000_123_456_000, monotonic=5_000)
    module = SimpleNamespace(time_ns=lambda: fake.wall, monotonic_ns=lambda: fake.monotonic)
    monkeypatch.setattr(clock, "time", module)
    return fake


def test_it_starts_at_the_wall_clocks_microsecond(clocks):
    assert WallClock().now() == 1_700_000_000_123_456


def test_it_counts_whole_microseconds_on(clocks):
    started = WallClock()

    clocks.monotonic += 1_999

    assert started.now() == 1_700_000_000_123_457


@pytest.mark.parametrize("jump_ns", [-3_600 * 10**9, 3_600 * 10**9])
def test_setting_the_wall_clock_does_not_move_it(clocks, jump_ns):
    started = WallClock()

    clocks.wall += jump_ns

    assert started.now() == 1_700_000_000_123_456


def test_it_agrees_with_the_wall_clock_and_never_runs_backwards():
    real = WallClock()

    before = time.time_ns() // 1000
    instants = [real.now() for _ in range(1000)]
    after = time.time_ns() // 1000

    assert instants == sorted(instants)
    assert before - SECOND < instants[0] <= instants[-1] < after + SECOND
