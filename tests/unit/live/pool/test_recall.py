"""What a balancer reads back of those before it."""

import msgspec
import pytest

from kairos.events import Finished, Record
from kairos.live.kafka.subscription import ReceivedMessage
from kairos.live.pool.messages import CAUSE, EPOCH, POOL, TAKEOVER
from kairos.live.pool.recall import Recall
from kairos.topics import EVENTS

UNTIL = 100


class Active:
    def __init__(self):
        self.recalled = []

    def recall(self, record, headers):
        self.recalled.append(record.event.request_id)


@pytest.fixture
def active():
    return Active()


@pytest.fixture
def recall(active):
    return Recall(active, "pool", UNTIL)


def record(offset, epoch, name="", pool="pool", **headers):
    value = msgspec.json.encode(Record(1, Finished(name or f"r{offset}")))
    return ReceivedMessage(
        EVENTS, 0, offset, 1, "w", value, {POOL: pool, EPOCH: str(epoch)} | headers
    )


def takeover(offset, pool="pool"):
    return ReceivedMessage(EVENTS, 0, offset, 1, pool, None, {POOL: pool, TAKEOVER: "p"})


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


def test_a_takeover_that_is_too_long_ago_to_be_read_is_known_from_the_first_record(active, recall):
    for message in (record(50, 10), record(51, 3), record(52, 10)):
        assert recall.read(message)
    assert active.recalled == ["r50", "r52"]


def test_other_pools_are_none_of_ours(active, recall):
    for message in (takeover(10), takeover(20, "other"), record(21, 20, pool="other")):
        assert recall.read(message)
    assert recall.read(record(22, 10))
    assert active.recalled == ["r22"]


@pytest.mark.parametrize("header", [EPOCH, CAUSE])
def test_a_number_that_is_none_leaves_the_record_out(active, recall, header):
    assert recall.read(record(9, 3, **{header: "x"}))
    assert active.recalled == []
