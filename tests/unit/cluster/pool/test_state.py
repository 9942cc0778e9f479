"""What the active balancer of a pool keeps: how far it has read, who is there, what is open."""

import pytest

from kairos.cluster.pool.active import Liveness
from kairos.cluster.pool.decision_publisher import Offsets
from kairos.cluster.pool.messages import RecalledRecord
from kairos.cluster.pool.pool_calls import PoolCalls
from kairos.core import SECOND, Arrived, Cancelled, Dispatch, Finished, FirstToken, Record, Refuse
from tests.support.simulate import build


def test_nothing_is_committed_before_anything_was_read():
    assert Offsets().next is None


def seconds(number):
    return int(number * SECOND)


@pytest.fixture
def liveness():
    return Liveness("us", ["p", "q"], 0)


def test_nobody_is_lost_while_the_bus_is_silent(liveness):
    assert liveness.take_lost(seconds(100)) == set()


def test_after_a_silence_of_the_bus_everybody_has_time_to_be_heard(liveness):
    liveness.hear("us", seconds(100))
    for second in (100, 101, 102, 103, 104, 105):
        liveness.hear("us", seconds(second))
        assert liveness.take_lost(seconds(second)) == set()
    liveness.hear("us", seconds(105.1))
    assert liveness.take_lost(seconds(105.1)) == {"p", "q"}


def arrived(name, *commands, at=0):
    return Record(at, Arrived(build.request(name)), commands)


def decided(record, **more):
    return RecalledRecord(record=record, epoch=1, **more)


@pytest.fixture
def opened():
    calls = PoolCalls()
    for name in ("a", "b", "c"):
        calls.recall(decided(arrived(name, at=7), performer=f"of-{name}", cause=4))
    return calls


def test_a_first_token_closes_nothing(opened):
    assert opened.follow(Record(0, FirstToken("a")), redo=False) == []
    assert "a" in opened


def test_a_dispatch_says_where_a_call_runs(opened):
    record = Record(0, Finished("b"), (Dispatch("a", "e1"), Dispatch("unknown", "e2")))
    assert [each.request.id for each in opened.follow(record, redo=False)] == ["b"]
    assert opened.get("a").instance_id == "e1"


def test_a_call_that_is_to_be_begun_anew_stays_open(opened):
    assert opened.follow(Record(0, Cancelled("a")), redo=True) == []
    assert opened.get("a").to_redo
    assert opened.follow(Record(0, Cancelled("unknown")), redo=True) == []
    opened.recall(decided(Record(0, Cancelled("b")), redo=True))
    assert opened.get("b").to_redo


def test_who_takes_over_knows_what_was_refused_for_it_may_not_have_been_told(opened):
    opened.recall(decided(Record(0, Cancelled("x"), (Refuse("a", None),))))
    assert opened.get("a").refused == Refuse("a", None)
