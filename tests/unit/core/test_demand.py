"""What a pool will have to do, told from looks at it."""

from kairos.core import DayShape, Demand, Look
from kairos.core.pool_demand import DAY_S, OpenWork

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
        demand.add_look(look)
    return demand


def test_nothing_is_told_before_anything_was_seen():
    assert Demand().ahead(100.0) == 0.0
    assert Demand().rate_per_s(100.0) == 0.0


def test_midnight_joins_the_days():
    day = DayShape((4.0, 1.0, 1.0, 2.0))
    assert day.at(0.0) == day.at(DAY_S) == 3.0
    assert day.at(-DAY_S / 8) == 2.0


def test_a_look_from_the_past_changes_nothing():
    demand = watched(600, lambda _: 0.2)
    before = demand.ahead(100.0)
    demand.add_look(Look(at_s=0.0, begun=900, open_work=[OpenWork(9, 9, 9.0)], running=9))
    assert demand.ahead(100.0) == before
