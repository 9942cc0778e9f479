"""What the active balancer of a pool keeps: how far it has read, who is there, what is open."""

import pytest

from kairos.events import Arrived, Cancelled, Dispatch, Failed, Finished, FirstToken, Record, Refuse
from kairos.live.pool.liveness import LOST_S, Liveness
from kairos.live.pool.messages import CAUSE, PERFORMER, REDO
from kairos.live.pool.offsets import Offsets
from kairos.live.pool.pool_calls import Open, PoolCalls
from kairos.model import SECOND
from tests.support import build


def test_nothing_is_committed_before_anything_was_read():
    assert Offsets().next is None


def test_a_successor_reads_from_the_first_message_that_is_not_done():
    offsets = Offsets()
    for each in (5, 6, 9):
        offsets.add(each)
    assert offsets.next == 5
    offsets.done(6)
    assert offsets.next == 5
    offsets.done(5)
    assert offsets.next == 9
    offsets.done(9)
    assert offsets.next == 10


def test_what_was_done_is_not_undone_by_being_read_again():
    offsets = Offsets()
    offsets.add(7)
    offsets.add(3)
    offsets.done(7)
    offsets.done(3)
    assert offsets.next == 8
    offsets.done(1)  # never read
    assert offsets.next == 8


def seconds(number):
    return int(number * SECOND)


@pytest.fixture
def liveness():
    return Liveness("us", ["p", "q"], 0)


def test_a_performer_that_fell_silent_is_lost_once(liveness):
    for second in range(1, 7):
        liveness.hear("us", seconds(second))
        liveness.hear("q", seconds(second))
        lost = liveness.take_lost(seconds(second))
        assert lost == ({"p"} if second == 6 else set())
    assert liveness.take_lost(seconds(6)) == set()


def test_five_seconds_of_silence_are_not_too_long_yet(liveness):
    for second in range(1, 6):
        liveness.hear("us", seconds(second))
    assert liveness.take_lost(seconds(LOST_S)) == set()
    assert liveness.take_lost(seconds(LOST_S) + 1) == {"p", "q"}


def test_nobody_is_lost_while_the_bus_is_silent(liveness):
    assert liveness.take_lost(seconds(100)) == set()


def test_after_a_silence_of_the_bus_everybody_has_time_to_be_heard(liveness):
    liveness.hear("us", seconds(100))
    for second in (100, 101, 102, 103, 104, 105):
        liveness.hear("us", seconds(second))
        assert liveness.take_lost(seconds(second)) == set()
    liveness.hear("us", seconds(105.1))
    assert liveness.take_lost(seconds(105.1)) == {"p", "q"}


def test_what_others_say_is_no_sign_that_the_bus_brings_all_of_it(liveness):
    for second in (1, 2, 3):
        liveness.hear("p", seconds(second))
    for second in (4.5, 5.5, 6.5, 7.5, 8.5, 9.5):
        liveness.hear("us", seconds(second))
        assert liveness.take_lost(seconds(second)) == set()


def test_our_own_beat_that_is_a_little_late_excuses_nobody(liveness):
    for instant in (1.5, 3.4, 5.1):
        liveness.hear("us", seconds(instant))
    assert liveness.take_lost(seconds(5.1)) == {"p", "q"}


def test_our_own_beat_that_is_late_counts_as_a_silence_of_the_bus(liveness):
    for instant in (1, 3.1, 5.1):
        liveness.hear("us", seconds(instant))
    assert liveness.take_lost(seconds(5.1)) == set()


def test_who_was_lost_and_is_heard_again_is_there_again(liveness):
    for second in range(1, 7):
        liveness.hear("us", seconds(second))
    assert liveness.take_lost(seconds(6)) == {"p", "q"}
    liveness.hear("p", seconds(6))
    for second in range(7, 12):
        liveness.hear("us", seconds(second))
        assert liveness.take_lost(seconds(second)) == set()
    liveness.hear("us", seconds(12))
    assert liveness.take_lost(seconds(12)) == {"p"}


def test_somebody_new_is_known_from_the_first_word(liveness):
    for second in range(1, 7):
        liveness.hear("us", seconds(second))
        liveness.hear("new", seconds(1))
    assert "new" not in liveness.take_lost(seconds(6))
    assert liveness.take_lost(seconds(6.1)) == {"new"}


def arrived(name, *commands, at=0):
    return Record(at, Arrived(build.request(name)), commands)


@pytest.fixture
def opened():
    calls = PoolCalls()
    for name in ("a", "b", "c"):
        calls.recall(arrived(name, at=7), {PERFORMER: f"of-{name}", CAUSE: "4"})
    return calls


def test_what_arrived_is_open_with_its_performer_and_its_message(opened):
    assert (opened.get("a").performer, opened.get("a").offset) == ("of-a", 4)
    assert [each.request.id for each in opened.all()] == ["a", "b", "c"]
    assert [o.request.id for o in opened.performed_by({"of-b", "of-c"})] == ["b", "c"]
    assert opened.oldest_at(99) == 7
    assert PoolCalls().oldest_at(99) == 99


def test_a_record_without_a_cause_leaves_the_message_unknown():
    calls = PoolCalls()
    calls.recall(arrived("a"), {})
    assert (calls.get("a").offset, calls.get("a").performer) == (None, "")


@pytest.mark.parametrize("end", [Finished("a"), Failed("a", "why"), Cancelled("a")])
def test_each_end_closes_a_call(opened, end):
    [ended] = opened.follow(Record(0, end), redo=False)
    assert ended.request.id == "a"
    assert "a" not in opened
    assert opened.follow(Record(0, end), redo=False) == []


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
    opened.recall(Record(0, Cancelled("b")), {REDO: "1"})
    assert opened.get("b").to_redo


def test_a_refused_call_of_a_client_is_closed(opened):
    [ended] = opened.follow(Record(0, Cancelled("x"), (Refuse("a", None),)), redo=False)
    assert (ended.request.id, ended.refused) == ("a", Refuse("a", None))
    assert "a" not in opened


def test_a_refused_call_over_the_bus_is_open_until_its_answer_is_safe(opened):
    opened.get("a").call = object()
    assert opened.follow(Record(0, Cancelled("x"), (Refuse("a", None),)), redo=False) == []
    assert opened.get("a").refused == Refuse("a", None)
    assert len(opened.follow(Record(0, Failed("a", "refused")), redo=False)) == 1


def test_who_takes_over_knows_what_was_refused_for_it_may_not_have_been_told(opened):
    opened.recall(Record(0, Cancelled("x"), (Refuse("a", None),)), {})
    assert opened.get("a").refused == Refuse("a", None)


def test_what_arrives_again_under_the_same_name_is_a_new_call(opened):
    opened.recall(Record(0, Cancelled("x"), (Refuse("a", None),)), {})
    opened.recall(arrived("a", Dispatch("a", "e0")), {PERFORMER: "other", CAUSE: "9"})
    again = opened.get("a")
    assert (again.refused, again.performer, again.offset) == (None, "other", 9)
    assert again.instance_id == "e0"


def test_what_is_added_can_be_taken_away():
    calls, each = PoolCalls(), Open(build.request("a"), "p", 1, 2)
    calls.add(each)
    assert calls.remove("a") is each
    assert calls.remove("a") is None
