"""What a pool will have to do, told from looks at it."""

import math

import pytest

from kairos.planner.demand import DAY_S, DayShape, Demand, Look, OpenWork

EVERY_S = 15.0


def looks(seconds, rate, *, open_work=(), running=0, begun=0, start_s=0.0):
    """One each 15 s; `rate` is of an instant."""
    total = float(begun)
    for step in range(int(seconds / EVERY_S)):
        at_s = start_s + step * EVERY_S
        total += rate(at_s) * EVERY_S
        yield Look(at_s=at_s, begun=int(total), open_work=open_work, running=running, seats=20.0)


def watched(seconds, rate, **seen):
    demand = Demand(day=seen.pop("day", None))
    for look in looks(seconds, rate, **seen):
        demand.see(look)
    return demand


def test_nothing_is_told_before_anything_was_seen():
    assert Demand().ahead(100.0) == 0.0
    assert Demand().rate_per_s(100.0) == 0.0


def test_what_is_open_fades_as_its_work_is_done():
    demand = Demand()
    demand.see(Look(at_s=0.0, begun=0, open_work=[OpenWork(1, 2, 100.0)], running=2))
    assert demand.ahead(0.0) == 2.0
    assert demand.ahead(50.0) == pytest.approx(2 * math.exp(-1))  # 50 s at a width of 2


def test_work_that_lasts_longer_than_the_time_ahead_is_still_there():
    demand = Demand()
    demand.see(Look(at_s=0.0, begun=0, open_work=[OpenWork(5, 5, 5e6)], running=5))
    assert demand.ahead(300.0) == pytest.approx(5.0, rel=1e-3)


def test_a_steady_pool_is_expected_to_stay_as_it_is():
    """Little's law: 0.2/s, each of 100 s of work at a width of 1, are 20 in flight."""
    steady = [OpenWork(20, 20, 2000.0)]
    demand = watched(7200, lambda _: 0.2, open_work=steady, running=20)
    assert demand.work_s == pytest.approx(100.0, rel=0.02)
    for ahead_s in (0.0, 60.0, 300.0, 1000.0):
        assert demand.ahead(ahead_s) == pytest.approx(20.0, rel=0.03)


@pytest.mark.parametrize("left_s", [20.0, 50.0, 100.0])
def test_what_begins_makes_up_for_what_ends_whatever_stays_are_like(left_s):
    """Stays of 100 s that all take as long have 50 s left in the mean."""
    steady = [OpenWork(20, 20, 20 * left_s)]
    demand = watched(7200, lambda _: 0.2, open_work=steady, running=20)
    for ahead_s in (0.0, 60.0, 300.0, 1000.0):
        assert demand.ahead(ahead_s) == pytest.approx(20.0, rel=0.03)


def test_a_rising_rate_is_drawn_on_and_a_falling_one_too():
    rising = watched(7200, lambda at_s: 0.1 + at_s / 36_000)
    assert rising.rate_per_s(0.0) == pytest.approx(0.3, rel=0.03)
    assert rising.rate_per_s(600.0) == pytest.approx(0.3 + 600 / 36_000, rel=0.05)
    falling = watched(7200, lambda at_s: 0.3 - at_s / 36_000)
    assert falling.rate_per_s(600.0) == pytest.approx(0.1 - 600 / 36_000, rel=0.15)
    assert falling.rate_per_s(1e6) == 0.0


def test_a_known_shape_of_days_tells_the_rise_before_it_comes():
    shape = tuple(1.0 + hour for hour in range(24))
    demand = watched(4 * 3600, lambda _: 0.5, day=DayShape((1.0,) * 24))
    assert demand.rate_per_s(3600.0) == pytest.approx(0.5, rel=0.05)
    day = DayShape(shape)
    demand = watched(6 * 3600, lambda at_s: 0.1 * day.at(at_s), day=day)
    assert demand.rate_per_s(2 * 3600) == pytest.approx(0.1 * day.at(8 * 3600), rel=0.05)


def test_midnight_joins_the_days():
    day = DayShape((4.0, 1.0, 1.0, 2.0))
    assert day.at(0.0) == day.at(DAY_S) == 3.0
    assert day.at(-DAY_S / 8) == 2.0


def test_a_count_that_begins_anew_is_no_fall():
    demand = watched(3600, lambda _: 0.2, begun=10_000)
    before = demand.rate_per_s(0.0)
    for look in looks(600, lambda _: 0.2, start_s=3600.0):
        demand.see(look)
    assert demand.rate_per_s(0.0) == pytest.approx(before, rel=0.1)


def test_a_look_from_the_past_changes_nothing():
    demand = watched(600, lambda _: 0.2)
    before = demand.ahead(100.0)
    demand.see(Look(at_s=0.0, begun=900, open_work=[OpenWork(9, 9, 9.0)], running=9))
    assert demand.ahead(100.0) == before


def test_where_more_are_in_flight_than_there_are_seats_they_end_as_many_times_later():
    demand = Demand()
    demand.see(Look(at_s=0.0, begun=0, open_work=[OpenWork(40, 40, 4000.0)], running=10))
    assert demand.ahead(100.0) == pytest.approx(40 * math.exp(-1))
    assert demand.ahead(100.0, 10.0) == pytest.approx(40 * math.exp(-1 / 4))
    assert demand.ahead(100.0, 80.0) == demand.ahead(100.0)
