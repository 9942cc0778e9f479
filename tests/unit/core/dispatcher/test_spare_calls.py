"""What goes as spare takes a small part of an instance beside others, and all of it alone."""

from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SECOND
from kairos.core.dispatcher.spare_calls import ALONE_US, AT_ONCE, BESIDE, SpareCalls
from tests.support.simulate import build


def is_spare(name):
    return name == "batch"


def call(name, service_class="batch"):
    return build.request(name, service_class=service_class)


def test_beside_others_it_goes_only_once_the_last_one_is_paid_for():
    spare = SpareCalls()
    spare.count_call(call("online", "standard"), "a")
    assert spare.may_dispatch("a", is_spare, 0.1, 1.0, at=0)
    spare.count_call(call("line"), "a")
    spare.charge_best_effort("a", SECOND, is_spare, at=0)

    paid_at = int(SECOND / BESIDE)
    assert not spare.may_dispatch("a", is_spare, 0.1, 1.0, at=paid_at - 1)
    assert spare.may_dispatch("a", is_spare, 0.1, 1.0, at=paid_at)


@given(st.lists(st.tuples(st.integers(0, SECOND), st.integers(1, SECOND)), max_size=200))
def test_beside_others_spare_calls_have_their_part_of_the_time_and_one_call_more(tries):
    spare, at, used_us, largest_us = SpareCalls(), 0, 0, 0
    spare.count_call(call("online", "standard"), "a")
    for wait_us, cost_us in tries:
        at += wait_us
        if spare.may_dispatch("a", is_spare, 0.5, 1.0, at):
            spare.count_call(call("line"), "a")
            spare.charge_best_effort("a", cost_us, is_spare, at)
            used_us, largest_us = used_us + cost_us, max(largest_us, cost_us)
    assert used_us <= BESIDE * at + largest_us


def test_alone_it_fills_the_instance_by_and_by():
    spare = SpareCalls()
    spare.count_call(call("online", "interactive"), "a")
    spare.count_call(call("line"), "a")
    spare.uncount_call(call("online", "interactive"), "a", at=0)

    assert spare.may_dispatch("a", is_spare, AT_ONCE - 0.01, 1.0, at=0)
    assert not spare.may_dispatch("a", is_spare, AT_ONCE, 1.0, at=0)
    assert spare.may_dispatch("a", is_spare, 0.99, 1.0, at=ALONE_US)
    assert spare.may_dispatch("b", is_spare, 0.99, 1.0, at=0)  # where nobody ever was


def test_what_ends_gives_back_what_it_began():
    spare = SpareCalls()
    for name in ("one", "two"):
        spare.count_call(call(name, "standard"), "a")
    spare.count_call(call("line"), "a")
    spare.charge_best_effort("a", SECOND, is_spare, at=0)
    assert not spare.may_dispatch("a", is_spare, 0.0, 1.0, at=1)
    spare.uncount_call(call("one", "standard"), "a", at=2)
    assert not spare.may_dispatch("a", is_spare, 0.0, 1.0, at=2)
    spare.uncount_call(call("two", "standard"), "a", at=2)
    assert spare.may_dispatch("a", is_spare, 0.0, 1.0, at=2)


def test_what_is_kept_is_bounded_however_many_classes_calls_name():
    spare = SpareCalls()
    spare.count_call(call("online", "standard"), "a")
    spare.uncount_call(call("online", "standard"), "a", at=0)
    for number in range(1_000):
        odd = call(f"odd {number}", f"class-{number}")
        spare.count_call(odd, "a")
        spare.uncount_call(odd, "a", at=number)
    there = spare._there["a"]
    assert len(there) == 0
    assert len(there.ended_at) < 100
    assert not spare.may_dispatch(
        "a", is_spare, AT_ONCE + 0.01, 1.0, at=999
    )  # the latest is not forgotten


def test_it_is_the_latest_end_of_a_class_that_counts():
    spare = SpareCalls()
    for name, at in (("standard", 0), ("interactive", SECOND), ("standard", ALONE_US)):
        spare.count_call(call(name, name), "a")
        spare.uncount_call(call(name, name), "a", at=at)
    assert not spare.may_dispatch("a", is_spare, AT_ONCE, 1.0, at=ALONE_US)


def test_where_others_are_elsewhere_less_of_an_instance_is_filled():
    spare, pool = SpareCalls(), [build.instance(name) for name in "abcd"]
    for name in "abc":
        spare.count_call(call(name, "standard"), name)
    assert spare.free_share(pool, is_spare) == 0.25
    spare.count_call(call("line"), "d")
    assert spare.free_share(pool, is_spare) == 0.25  # what is spare itself is in nobody's way
    spare.uncount_call(call("c", "standard"), "c", at=0)
    assert spare.free_share(pool, is_spare) == 0.5

    for free, most in ((1.0, 1.0), (0.5, AT_ONCE + (1 - AT_ONCE) / 2), (0.0, AT_ONCE)):
        assert spare.may_dispatch("d", is_spare, most - 0.01, free, at=2 * ALONE_US)
        assert not spare.may_dispatch("d", is_spare, most, free, at=2 * ALONE_US)
