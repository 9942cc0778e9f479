"""What a balancer reads back of those before it."""

import msgspec
import pytest

from kairos.cluster import POOL_HEADER, TAKEOVER_HEADER, ReceivedMessage
from kairos.cluster.pool.member import Recall
from kairos.cluster.pool.messages import CAUSE, EPOCH, TURN
from kairos.core import Finished, Record, Topic
from tests.support.observe.figures import left_out

UNTIL = 100


class Active:
    def __init__(self):
        self.recalled = []

    def recall(self, decision):
        name = decision.record.event.request_id
        if name == "terrible":
            raise ZeroDivisionError
        self.recalled.append(name)


@pytest.fixture
def active():
    return Active()


@pytest.fixture
def recall(active):
    return Recall(active, "pool", UNTIL)


def record(offset, epoch, name="", pool="pool", **headers):
    value = msgspec.json.encode(Record(1, Finished(name or f"r{offset}")))
    return ReceivedMessage(
        Topic.EVENTS, 0, offset, 1, "w", value, {POOL_HEADER: pool, EPOCH: str(epoch)} | headers
    )


def takeover(offset, pool="pool"):
    return ReceivedMessage(
        Topic.EVENTS, 0, offset, 1, pool, None, {POOL_HEADER: pool, TAKEOVER_HEADER: "p"}
    )


def test_all_up_to_our_own_takeover_is_read(active, recall):
    assert recall.read(record(98, 5))
    assert recall.read(record(99, 5))
    assert not recall.read(takeover(UNTIL))
    assert active.recalled == ["r98", "r99"]


def test_what_comes_after_it_is_not_read(active, recall):
    assert not recall.read(record(UNTIL, 5))
    assert not recall.read(record(UNTIL + 1, 5, pool="other"))
    assert active.recalled == []


def test_after_a_takeover_older_balancers_do_not_count(active, recall):
    for message in (record(9, 3), takeover(10), record(11, 3), record(12, 10), record(13, 3)):
        assert recall.read(message)
    assert active.recalled == ["r9", "r12"]


def test_an_epoch_from_before_all_that_is_read_is_the_one_that_was_committed(active):
    recall = Recall(active, "pool", UNTIL, epoch=10)
    for message in (record(50, 10), record(51, 3), record(52, 11), record(53, 10)):
        assert recall.read(message)
    assert active.recalled == ["r50", "r53"]


@pytest.mark.parametrize("forged", [49, 50, 60, 99, 10**6, 10**17])
def test_no_number_makes_a_balancer_deaf(active, recall, forged):
    """Read without a committed epoch: any before the first message counts."""
    for message in (record(40, 10), record(50, forged), record(51, 10)):
        assert recall.read(message)
    assert active.recalled == ["r40", "r51"]


def test_a_record_at_which_kairos_fails_is_left_out_and_no_other(active, recall):
    before = left_out()[Topic.EVENTS]
    for message in (record(9, 3), record(10, 3, "terrible"), record(11, 3)):
        assert recall.read(message)
    assert active.recalled == ["r9", "r11"]
    assert left_out()[Topic.EVENTS] == before + 1


def test_other_pools_are_none_of_ours(active, recall):
    for message in (takeover(10), takeover(20, "other"), record(21, 20, pool="other")):
        assert recall.read(message)
    assert recall.read(record(22, 10))
    assert active.recalled == ["r22"]


@pytest.mark.parametrize("header", [EPOCH, CAUSE, TURN])
@pytest.mark.parametrize("text", ["x", "", "-1", "+1", "1_0", " 1", "1e3", "01", "\u0661", 10**18])
def test_a_number_that_is_none_leaves_the_record_out(active, recall, header, text):
    assert recall.read(record(9, 3, **{header: str(text)}))
    assert active.recalled == []
