"""A circuit breaker for each instance."""

import pytest

from kairos.core import Circuits
from kairos.core.faults.circuits import FIRST_US, LONGEST_US

MOST = 4


@pytest.fixture
def circuits():
    return Circuits()


def open_at(circuits, at=0):
    circuits.open_circuit("i", at)
    return at + FIRST_US


def test_an_instance_of_which_nothing_is_known_takes_calls(circuits):
    assert circuits.admits_call("i", 100, 0)
    assert not circuits
    assert circuits.next_try_at(0) is None


def test_one_that_is_not_trusted_is_left_alone(circuits):
    until = open_at(circuits)

    assert not circuits.admits_call("i", 0, until - 1)
    assert circuits.state("i", until - 1) == "open"
    assert circuits.next_try_at(0) == until
    assert circuits.admits_call("other", 0, 0)


def test_it_is_tried_with_one_call_and_then_with_one_more_for_each_answer(circuits):
    at = open_at(circuits)

    assert circuits.state("i", at) == "half-open"
    for running in range(MOST):
        assert circuits.admits_call("i", running, at)
        assert not circuits.admits_call("i", running + 1, at)
        circuits.count_answer("i", at, MOST)
    assert circuits.admits_call("i", 100, at)
    assert circuits.state("i", at) == "closed"
    assert not circuits


def test_each_time_that_it_goes_on_it_is_left_alone_for_twice_as_long(circuits):
    at, waits = 0, []
    for _ in range(7):
        circuits.open_circuit("i", at)
        circuits.open_circuit("i", at)
        waits.append(circuits.next_try_at(at) - at)
        at += waits[-1]

    assert waits == [min(FIRST_US << n, LONGEST_US) for n in range(7)]


def test_what_ends_of_calls_that_were_under_way_changes_nothing(circuits):
    until = open_at(circuits)

    circuits.open_circuit("i", until - 1)
    circuits.count_answer("i", until - 1, MOST)

    assert circuits.next_try_at(0) == until
    assert not circuits.admits_call("i", 1, until)


def test_one_that_left_begins_anew(circuits):
    open_at(circuits)
    circuits.close_circuit("i")
    assert circuits.admits_call("i", 100, 0)


def test_one_that_answered_and_then_failed_again_is_left_alone_no_longer_than_at_first(circuits):
    at = open_at(circuits)
    assert circuits.is_on_trial("i", at)
    circuits.open_circuit("i", at)  # and twice as long, where it did not
    at = circuits.next_try_at(at)
    assert not circuits.is_on_trial("i", at - 1)
    assert circuits.is_on_trial("i", at)

    circuits.count_answer("i", at, MOST)
    assert not circuits.is_on_trial("i", at)
    circuits.open_circuit("i", at)
    assert circuits.next_try_at(at) == at + FIRST_US
    assert not circuits.admits_call("i", 1, at + FIRST_US)
