"""Whose fault a failure is. The sums are done by hand from the model in the module's docstring."""

import pytest

from kairos.core import REMEMBERED_US, SECOND
from kairos.core.faults.attribution import (
    FAILS_IF_POISONOUS,
    MOST_SUSPECTS,
    PRIOR,
    PRIOR_CALLS,
    RATE,
    FaultAttribution,
)

CALLER, OTHER = ("t", "app", "agent"), ("t", "app", "other")
BODY = 7


@pytest.fixture
def attribution():
    return FaultAttribution()


def well(attribution, *names, at=0):
    for name in names:
        for _ in range(20):
            attribution.record_service(name, at)


def condemn(attribution, body):
    for name in "ab":
        attribution.record_failure(body, CALLER, name, 0, began_at=0)
    attribution.condemn_call(body, 0, killed=False)


def test_one_failure_where_nothing_is_known_says_little(attribution):
    share = attribution.record_failure(BODY, CALLER, "a", 0, began_at=0)

    odds = PRIOR / (1 - PRIOR) * FAILS_IF_POISONOUS / RATE
    assert share == pytest.approx(1 - odds / (1 + odds))
    assert not attribution.is_poisonous(BODY, 0)
    assert attribution.rate("a", 0) == pytest.approx((share + RATE) / (share + 1))


def test_a_call_that_two_well_instances_failed_is_poisonous(attribution):
    well(attribution, "a", "b")

    attribution.record_failure(BODY, CALLER, "a", 0, began_at=0)
    assert not attribution.is_poisonous(BODY, 0)
    attribution.record_failure(BODY, CALLER, "b", 0, began_at=0)

    assert attribution.is_poisonous(BODY, 0)
    assert not attribution.is_poisonous(8, 0)


def test_calls_of_one_body_that_one_event_failed_are_evidence_once(attribution):
    well(attribution, "a", "b")
    once = attribution.record_failure(BODY, CALLER, "a", 10, began_at=1)
    assert attribution.record_failure(BODY, CALLER, "a", 11, began_at=2) == once
    attribution.blame_one({BODY: 1.0}, [BODY], 11)
    risk = attribution.may_kill(BODY)
    assert not attribution.is_poisonous(BODY, 11)

    attribution.record_failure(BODY, CALLER, "a", 20, began_at=12)  # it was tried again

    assert attribution.is_poisonous(BODY, 20)
    assert attribution.may_kill(BODY) > risk


def test_what_is_tried_again_is_evidence_whatever_else_of_its_body_was_there(attribution):
    attribution.record_failure(BODY, CALLER, "a", 10, began_at=1)
    attribution.record_failure(BODY, CALLER, "a", 20, began_at=5)  # beside the first
    well(attribution, "a", at=25)
    assert not attribution.is_poisonous(BODY, 25)

    attribution.record_failure(BODY, CALLER, "a", 30, began_at=15)  # after the first had failed

    assert attribution.is_poisonous(BODY, 30)


def test_where_nothing_was_ever_served_nobody_knows_whose_fault_it_is(attribution):
    for name in "abc":
        attribution.record_failure(BODY, CALLER, name, 0, began_at=0)
    assert not attribution.is_poisonous(BODY, 0)


def test_a_single_instance_may_have_broken_as_long_as_it_serves_nothing_else(attribution):
    well(attribution, "a", at=0)
    for at in (1, 2, 3):
        attribution.record_failure(BODY, CALLER, "a", at, began_at=at)
    assert not attribution.is_poisonous(BODY, 3)
    attribution.record_service("a", 4)
    assert attribution.is_poisonous(BODY, 4)


def test_one_failure_condemns_no_call_whoever_made_it(attribution):
    well(attribution, "a", "b", "c")
    for number in range(100, 150):
        condemn(attribution, number)
    attribution.record_failure(BODY, CALLER, "a", 0, began_at=0)
    assert not attribution.is_poisonous(BODY, 0)


def test_where_a_tenth_of_all_fail_two_failures_condemn_no_call(attribution):
    """Even if the instances served their latest calls."""
    for name in "ab":
        for number in range(100):
            if number % 10:
                attribution.record_service(name, 0)
            else:
                attribution.record_failure(f"call {name}{number}", OTHER, name, 0, began_at=0)
                attribution.clear_suspect(f"call {name}{number}")
        for _ in range(9):
            attribution.record_service(name, 0)
    for name in "ab":
        attribution.record_failure(BODY, CALLER, name, 0, began_at=0)
    assert not attribution.is_poisonous(BODY, 0)


def test_where_others_fail_too_it_is_the_instance(attribution):
    well(attribution, "a", "b")
    for name in "ab":
        for number in range(6):
            attribution.record_failure(f"call {name}{number}", OTHER, name, 0, began_at=0)

    for name in "abab":
        assert attribution.record_failure(BODY, CALLER, name, 0, began_at=0) > 0.9
    assert not attribution.is_poisonous(BODY, 0)


def test_a_poisonous_call_costs_an_instance_ever_less(attribution):
    well(attribution, "a")
    shares = [attribution.record_failure(BODY, CALLER, "a", 0, began_at=0) for _ in range(4)]

    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.02
    assert attribution.rate("a", 0) < 0.2


def test_what_the_instance_says_of_itself_says_nothing_of_the_call(attribution):
    well(attribution, "a", "b")
    for name in "abab":
        assert (
            attribution.record_failure(BODY, CALLER, name, 0, began_at=0, about_itself=True) == 1.0
        )
    assert not attribution.is_poisonous(BODY, 0)


def test_one_that_served_nothing_for_long_is_not_known_to_be_well(attribution):
    well(attribution, "a", "b", at=0)
    attribution.record_failure("early", CALLER, "a", 0, began_at=0)
    attribution.record_failure("late", CALLER, "b", 120 * SECOND, began_at=120 * SECOND)

    assert attribution.rate("b", 120 * SECOND) > 0.4 > attribution.rate("a", 0)


def test_a_suspect_that_is_served_was_failed_by_the_instance(attribution):
    well(attribution, "a")
    share = attribution.record_failure(BODY, CALLER, "a", 0, began_at=0)
    before = attribution.rate("a", 0)

    attribution.clear_suspect(BODY)

    assert share < 1.0
    assert attribution.rate("a", 0) > before
    attribution.record_failure(BODY, CALLER, "b", 0, began_at=0)
    assert not attribution.is_poisonous(BODY, 0), "it begins anew"


def test_a_poisonous_call_is_none_of_the_instances_faults(attribution):
    well(attribution, "a", "b")
    for name in "ab":
        attribution.record_failure(BODY, CALLER, name, 0, began_at=0)

    assert attribution.condemn_call(BODY, 0, killed=False) == ["a", "b"]

    assert attribution.rate("a", 0) < RATE
    assert attribution.rate("b", 0) < RATE
    assert attribution.is_poisonous(BODY, 0)


def test_who_made_one_is_likelier_to_have_made_another(attribution):
    well(attribution, "a", "b")
    condemn(attribution, BODY)
    for _ in range(5):
        attribution.count_served_call(CALLER)
        attribution.count_served_call(OTHER)

    share = attribution.record_failure("next", CALLER, "c", 0, began_at=0)
    unknown = attribution.record_failure("another", OTHER, "d", 0, began_at=0)

    prior = (1 + PRIOR * PRIOR_CALLS) / (1 + 5 + PRIOR_CALLS)
    odds = prior / (1 - prior) * FAILS_IF_POISONOUS / RATE
    assert share == pytest.approx(1 / (1 + odds))
    assert share < unknown


def test_all_is_forgotten_after_a_while(attribution):
    well(attribution, "a", "b")
    condemn(attribution, BODY)

    assert attribution.is_poisonous(BODY, REMEMBERED_US)
    assert not attribution.is_poisonous(BODY, REMEMBERED_US + 1)
    at = REMEMBERED_US + 1
    later = attribution.record_failure(BODY, CALLER, "new", at, began_at=at)
    assert later == attribution.record_failure("x", OTHER, "newer", at, began_at=at)


def test_an_instance_that_left_begins_anew(attribution):
    for number in range(9):
        attribution.record_failure(f"call {number}", CALLER, "a", 0, began_at=0)
    attribution.forget_instance("a")
    assert attribution.rate("a", 0) == RATE


def test_suspects_without_end_take_bounded_room(attribution):
    for number in range(MOST_SUSPECTS + 10):
        attribution.record_failure(number, ("t", "app", str(number)), "a", 0, began_at=0)
    assert len(attribution._suspects) == MOST_SUSPECTS
