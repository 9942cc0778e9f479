"""What memory is kept for, and how long."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SECOND, Arrived, Cancelled, Finished, InstanceLeft, Progressed
from kairos.core.dispatcher import kv_retention
from kairos.core.dispatcher.kv_retention import LOST, KvRetention, time_to_live
from tests.support.simulate import build

FILL_US = 20 * SECOND
WORTH_US = int(LOST * FILL_US)


def call(name, *prefix, agent="a", prompt=100):
    return build.request(name, agent=agent, prefix=prefix, prefix_units=64, prompt=prompt)


def instance(name, kv=1_000):
    return build.instance(name, kv=kv)


def kept(made, where, at):
    """Tokens, now and half a second later."""
    now, later, *_ = made.kept(where).by_slot(at).tolist()
    return now, later


def taught(*gaps_us, at=0, agent="a"):
    """Returns that have seen such gaps, and when that was over; `inf`: it never came back."""
    made = KvRetention()
    for n, gap_us in enumerate(gaps_us):
        made.retain_context(call(f"t{n}", -n, agent=agent), instance("i"), 10, FILL_US, at)
        if gap_us < math.inf:
            made.assign_context(call(f"u{n}", -n, agent=agent), at + gap_us)
            made.release_context(f"u{n}")
        at += WORTH_US
    return made, at


def test_nothing_is_kept_until_eight_gaps_are_known():
    assert time_to_live([1.0] * 7, WORTH_US) == 0
    assert time_to_live([1.0] * 8, WORTH_US) == 1


def test_what_never_comes_back_or_too_late_is_not_waited_for():
    assert time_to_live([math.inf] * 20, 10) == 0
    assert time_to_live([10.0] * 20, 10) == 0
    assert time_to_live([9.0] * 20, 10) == 9


def test_a_wait_goes_on_while_enough_come_back_for_it():
    # Half come back after 1, the others after 9. Of 10 that a return is worth: waiting for the
    # first gains 5 - 1, for all of them 10 - 5.
    assert time_to_live([1.0] * 8 + [9.0] * 8, 10) == 9
    # A quarter never comes: 5 - 1 against 7.5 - (0.5 + 2.25 + 2.25).
    assert time_to_live([1.0] * 8 + [9.0] * 4 + [math.inf] * 4, 10) == 1
    # One in ten comes back at all: 1 - 2.
    assert time_to_live([2.0] + [math.inf] * 9, 10) == 0


@given(
    st.lists(st.one_of(st.integers(1, 30), st.just(math.inf)), min_size=8, max_size=20),
    st.integers(1, 25),
)
def test_no_other_time_gains_more(gaps, worth):
    def gain(until):
        # Who would come back at the very end is waited for until then.
        return sum(worth * (gap <= until) - min(gap, until) for gap in gaps)

    best = time_to_live(gaps, worth)
    if best:
        assert gain(best) > 0
    assert all(gain(best) >= gain(until) or until == 0 for until in range(31))
    assert best or all(gain(until) <= 0 for until in range(1, 31))


def test_memory_is_kept_as_long_as_calls_of_the_agent_take_to_come_back():
    made, at = taught(*[SECOND] * 8)
    made.retain_context(call("r", 1, 2), instance("i"), 120, FILL_US, at)
    unknown = call("other", 3, agent="b")
    made.retain_context(unknown, instance("i"), 7, FILL_US, at)

    assert kept(made, "i", at + SECOND // 2 - 1) == (120, 120)
    assert kept(made, "i", at + SECOND // 2) == (120, 0)
    assert kept(made, "i", at + SECOND) == (0, 0)
    assert kept(made, "j", at) == (0, 0)


def test_it_is_for_the_first_that_goes_on_from_there():
    made, at = taught(*[SECOND] * 8)
    made.retain_context(call("r", 1, 2), instance("i"), 120, FILL_US, at)
    for name, prefix in {"elsewhere": (1, 4), "next": (1, 2, 3), "another": (1, 2)}.items():
        made.assign_context(call(name, *prefix), at)

    assert list(made.waiting(at)) == ["next"]
    assert made.kept_for(call("next", 1, 2, 3, prompt=500), at) == ("i", 120)
    assert made.kept_for(call("next", 1, 2, 3, prompt=50), at) == ("i", 50)  # no more than it has
    assert made.kept_for(call("another", 1, 2), at) is None
    assert list(made.waiting(at + SECOND)) == []  # too late
    assert made.kept_for(call("next", 1, 2, 3), at + SECOND) is None


def test_the_longest_context_that_a_prompt_goes_on_from_counts():
    made, at = taught(*[SECOND] * 8)
    made.retain_context(call("short", 1), instance("i"), 50, FILL_US, at)
    made.retain_context(call("long", 1, 2), instance("j"), 120, FILL_US, at)
    made.assign_context(call("next", 1, 2, 3), at)

    assert made.kept_for(call("next", 1, 2, 3), at) == ("j", 100)


def test_those_that_have_come_back_are_told_in_the_order_in_which_they_did():
    made, at = taught(*[SECOND] * 8)
    for n in (1, 2, 3):
        made.retain_context(call(f"r{n}", n), instance("i"), 10, FILL_US, at)
    for n in (2, 3, 1):
        made.assign_context(call(f"s{n}", n), at)

    assert list(made.waiting(at)) == ["s2", "s3", "s1"]


def test_those_for_whom_nothing_is_kept_any_more_are_not_looked_through_again():
    made, at = taught(*[SECOND] * 8)
    for n in range(3):
        made.retain_context(call(f"c{n}", n), instance("i"), 10, FILL_US, at)
        made.assign_context(call(f"r{n}", n), at + n)
    assert len(made._in_time) == 3
    # It takes the place of others.
    made.retain_context(call("large", 9), instance("i", kv=1_000), 990, FILL_US, at + 5)
    made.assign_context(call("other"), at + 5)
    assert [*made.waiting(at + 5)] == [*made._in_time] == ["r2"]
    made.assign_context(call("last"), at + SECOND)
    assert not made._in_time


def test_of_many_who_came_back_in_time_and_went_nothing_is_left():
    made, at = taught(*[SECOND] * 8)
    for n in range(1_000):
        made.retain_context(call(f"c{n}", n), instance("i"), 1, FILL_US, at)
        made.assign_context(call(f"r{n}", n), at)
        made.release_context(f"r{n}")
    assert not made._in_time
    assert len(made._in_time_until) < 100


def test_what_goes_gives_its_memory_back():
    made, at = taught(*[SECOND] * 8)
    made.retain_context(call("r", 1), instance("i"), 10, FILL_US, at)
    made.assign_context(call("next", 1), at)

    assert made.release_context("next") == "i"
    assert kept(made, "i", at) == (0, 0)
    assert made.release_context("next") is None


def test_an_instance_that_leaves_keeps_nothing():
    made, at = taught(*[SECOND] * 8)
    for n, where in enumerate("iij"):
        made.retain_context(call(f"r{n}", n), instance(where), 10, FILL_US, at)
    made.assign_context(call("next", 1), at)
    made.forget_instance("i")

    assert (kept(made, "i", at), list(made.waiting(at))) == ((0, 0), [])
    assert kept(made, "j", at) == (10, 10)
    assert made.release_context("next") is None


def test_calls_that_did_not_come_back_count_too():
    made, at = taught(*[SECOND] * 8, *[math.inf] * 56)
    made.retain_context(call("r", 1), instance("i"), 10, FILL_US, at)

    # 8 of 64 within a second: 0.125 x 10 s are saved, and 1 s is waited.
    assert kept(made, "i", at + SECOND - 1) == (10, 0)
    made, at = taught(*[SECOND] * 6, *[math.inf] * 58)
    made.retain_context(call("r", 1), instance("i"), 10, FILL_US, at)
    assert kept(made, "i", at) == (0, 0)


def test_who_returns_late_is_counted_once_and_as_one_that_did_not():
    made, at = taught(*[SECOND] * 8)
    before = list(next(iter(made._gaps.values())))
    made.retain_context(call("r", 1), instance("i"), 10, FILL_US, at)
    made.assign_context(call("late", 1), at + WORTH_US)

    assert list(next(iter(made._gaps.values()))) == [*before, math.inf]
    assert made.kept_for(call("late", 1), at + WORTH_US) is None


def test_who_came_back_and_waits_for_long_is_not_counted_again():
    made, at = taught(*[SECOND] * 8)
    made.retain_context(call("r", 1), instance("i"), 10, FILL_US, at)
    made.assign_context(call("next", 1), at + 7)
    made.assign_context(call("other", 5), at + WORTH_US)

    assert list(next(iter(made._gaps.values()))) == [*[SECOND] * 8, 7]
    assert made.release_context("next") is None


def test_the_same_context_is_kept_where_it_was_last():
    made, at = taught(*[SECOND] * 8)
    for where in "ij":
        made.retain_context(call("r", 1), instance(where), 10, FILL_US, at)
    assert [kept(made, each, at) for each in "ij"] == [(0, 0), (10, 10)]


def test_no_more_is_kept_than_the_memory_holds_and_the_last_is_kept():
    made, at = taught(*[SECOND] * 8)
    for n in range(20):
        made.retain_context(call(f"r{n}", n), instance("i", kv=65), 10, FILL_US, at + n)
    made.assign_context(call("late", 13, prompt=10), at + 20)
    made.assign_context(call("next", 14, prompt=10), at + 20)

    assert kept(made, "i", at + 20)[0] == 60
    assert made.kept_for(call("late", 13), at + 20) is None
    assert made.kept_for(call("next", 14), at + 20) == ("i", 10)
    assert list(made.waiting(at + 20)) == ["next"]


def test_what_is_over_goes_before_what_is_kept():
    made, at = taught(*[2 * SECOND] * 8)
    for n in range(8):  # of another agent, that comes back sooner
        made.retain_context(call(f"b{n}", 100 + n, agent="b"), instance("i"), 10, FILL_US, at)
        made.assign_context(call(f"c{n}", 100 + n, agent="b"), at + SECOND // 10)
        made.release_context(f"c{n}")
    made.retain_context(call("r", 1), instance("i", kv=65), 30, FILL_US, at)
    made.retain_context(call("short", 2, agent="b"), instance("i", kv=65), 30, FILL_US, at)
    made.retain_context(call("last", 3), instance("i", kv=65), 30, FILL_US, at + SECOND)

    assert kept(made, "i", at + SECOND)[0] == 60


def test_a_prompt_of_which_nothing_is_known_leaves_nothing():
    made, at = taught(*[SECOND] * 8)
    made.retain_context(call("r"), instance("i"), 10, FILL_US, at)
    assert kept(made, "i", at) == (0, 0)


def test_no_more_is_remembered_than_is_bounded(monkeypatch):
    monkeypatch.setattr(kv_retention, "_MAX_LEFT", 3)
    monkeypatch.setattr(kv_retention, "_MAX_AGENTS", 2)
    made, at = taught(*[SECOND] * 8)
    for n in range(5):
        made.retain_context(call(f"r{n}", n), instance("i"), n, FILL_US, at)
    assert kept(made, "i", at)[0] == 2 + 3 + 4

    for n in range(4):
        made.retain_context(call("r", 9, agent=f"b{n}"), instance("i"), 1, FILL_US, at)
        made.assign_context(call(f"s{n}", 9), at)
        made.release_context(f"s{n}")
    assert len(made._gaps) == 2


class Session:
    """An agent that goes on from its last context, on a small pool, after each `gap_us`."""

    def __init__(self, placement="kairos", **instance):
        instance = {"kv": 10_000, "seqs": 99} | instance
        self.balancer = build.balancer(build.instance("i", **instance), placement=placement)
        self.at, self.calls = 0, 0

    def arrives(self, name, *prefix, prompt=1_000, agent="a"):
        request = build.request(
            name, at=self.at, agent=agent, prompt=prompt, prefix=prefix, prefix_units=prompt
        )
        return self.balancer.handle(Arrived(request), self.at)

    def ends(self, name, tokens=10):
        self.balancer.handle(Progressed({name: tokens}), self.at)
        return self.balancer.handle(Finished(name, completion_tokens=tokens), self.at)

    def learns(self, gap_us=SECOND // 10, prompt=1_000):
        for n in range(9):
            [dispatch] = self.arrives(f"s{n}", *range(1, n + 2), prompt=prompt)
            assert dispatch.request_id == f"s{n}"
            self.at += SECOND // 20
            self.ends(f"s{n}")
            self.at += gap_us

    def fills(self, prompt=500):
        """Calls of others, as many as have room."""
        n = 0
        while self.arrives(f"full{n}", prompt=prompt, agent="other"):
            n += 1
            assert n < 99
        return n


def full_but_for_the_context(placement):
    """All waits of others; the session's last call has just ended."""
    session = Session(placement)
    session.learns()
    session.at += 20 * SECOND
    session.arrives("s9", *range(1, 11), prompt=4_000)
    session.fills()
    session.at += SECOND // 20
    return session


def test_what_a_call_leaves_is_not_given_to_others_before_its_next_comes():
    session = full_but_for_the_context("kairos")

    assert session.ends("s9") == []
    session.at += SECOND // 20
    [dispatch] = session.arrives("s10", *range(1, 12), prompt=4_020)
    assert (dispatch.request_id, dispatch.reason) == ("s10", "kept")


def test_once_the_time_is_over_others_have_it():
    session = full_but_for_the_context("kairos")
    session.ends("s9")
    session.at += SECOND

    assert session.arrives("one", prompt=500, agent="other")


def test_when_its_next_call_is_cancelled_others_have_it():
    session = full_but_for_the_context("kairos")
    session.ends("s9")
    # The rest of the memory is taken, and more than there is kept.
    assert session.arrives("s10", *range(1, 12), prompt=9_500) == []
    assert session.balancer.handle(Cancelled("s10"), session.at)


def test_other_placements_keep_nothing():
    session = full_but_for_the_context("least-kv")
    assert session.ends("s9")


@pytest.mark.parametrize("fields", [{"kv": None}, {"prefix_caching": False}])
def test_without_a_cache_or_a_size_nothing_is_kept(fields):
    session = Session(**fields)
    session.learns()
    assert session.balancer.ledger.retention.kept("i").by_slot(session.at)[0] == 0


def test_what_a_failed_call_leaves_is_not_waited_for():
    session = full_but_for_the_context("kairos")
    assert session.balancer.handle(Cancelled("s9"), session.at)


def test_an_instance_that_leaves_is_no_longer_kept_for_anybody():
    session = full_but_for_the_context("kairos")
    session.ends("s9")
    session.balancer.handle(InstanceLeft("i"), session.at)
    assert session.balancer.ledger.retention.kept("i").by_slot(session.at)[0] == 0
