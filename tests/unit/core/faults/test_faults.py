"""What a balancer makes of failures."""

import pytest

from kairos.core import (
    REMEMBERED_US,
    SECOND,
    Arrived,
    Bounced,
    Failed,
    Finished,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    Refuse,
    Tick,
)
from kairos.core.errors import CallBreaksEngines
from kairos.core.faults.faults import UNTRUSTED
from tests.support.simulate import build

BODY = 7


@pytest.fixture
def balancer():
    made = build.balancer(build.instance("a"), build.instance("b"), build.instance("c"))
    warm(made)
    return made


def arrive(balancer, name, body=None, at=None):
    at = balancer.at if at is None else at
    commands = balancer.handle(Arrived(build.request(name, at=at), body), at)
    return [command.instance_id for command in commands]


def warm(balancer, rounds=8):
    """Each instance serves calls, so it is known to be well."""
    for _ in range(rounds):
        balancer.handle(Tick(), balancer.at + 1)
        names = [f"warm {balancer.at} {which}" for which in "abc"]
        for name in names:
            arrive(balancer, name)
        for name in names:
            balancer.handle(Finished(name), balancer.at)


def bounce(balancer, name, body=None, **fields):
    """Off an instance that is heard of right after."""
    instance_id = balancer.ledger.instance_of(name) or ""  # it waits, and nothing is heard
    commands = balancer.handle(Bounced(name, "broke", body, **fields), balancer.at)
    return commands + balancer.handle(InstanceStatus(instance_id), balancer.at)


def states(balancer):
    circuits = balancer.faults.circuits
    return {each: circuits.state(each, balancer.at) for each in "abc"}


def test_one_call_alone_switches_no_well_instance_off(balancer):
    [first] = arrive(balancer, "bad")
    [again] = bounce(balancer, "bad", BODY)

    assert again.instance_id != first
    assert set(states(balancer).values()) == {"closed"}


def test_a_call_of_which_an_instance_died_alone_is_refused_and_remembered(balancer):
    arrive(balancer, "bad")
    for _ in range(2):
        instance_id = balancer.ledger.instance_of("bad")
        balancer.handle(Bounced("bad", "broke", BODY, dropped=True), balancer.at)
        commands = balancer.handle(InstanceLeft(instance_id), balancer.at)
    assert commands == [Refuse("bad", "m", "breaks_engines")]
    for name in "abc":
        balancer.handle(InstanceJoined(build.instance(name)), balancer.at)

    with pytest.raises(CallBreaksEngines):
        arrive(balancer, "under another name", BODY)
    assert arrive(balancer, "another body", BODY + 1)
    assert arrive(balancer, "later", BODY, at=balancer.at + REMEMBERED_US + 1)


@pytest.mark.parametrize("body", [BODY, None])
def test_what_instances_answer_refuses_no_call_and_holds_none_back(balancer, body):
    for number in range(9):
        name = f"bad {number}"
        assert arrive(balancer, name, body)
        for _ in range(2):
            [again] = bounce(balancer, name, body)
            assert again.instance_id
        assert bounce(balancer, name, body) == [Refuse(name, "m", "no_other")]
        warm(balancer, rounds=1)
    assert set(states(balancer).values()) == {"closed"}


def test_one_that_breaks_amid_its_streams_is_let_in_the_next_time(balancer):
    for name in ("once", "twice"):
        arrive(balancer, name, BODY)
        failed = Failed(name, "broke", by_instance=True, body=BODY, dropped=True)
        balancer.handle(failed, balancer.at)
    warm(balancer, rounds=1)
    assert arrive(balancer, "again", BODY)


def test_while_no_instance_serves_anything_it_may_have_been_the_instances(balancer):
    """As when all fail for a while: clients that try again are let in."""
    arrive(balancer, "bad")
    bounce(balancer, "bad", BODY)
    bounce(balancer, "bad", BODY)
    assert arrive(balancer, "again", BODY)


def test_a_suspect_that_is_served_is_none(balancer):
    arrive(balancer, "bad")
    bounce(balancer, "bad", BODY)
    balancer.handle(Finished("bad"), balancer.at)

    assert arrive(balancer, "again", BODY)
    [command] = bounce(balancer, "again", BODY)
    assert command.instance_id


def test_three_different_calls_in_a_row_switch_an_instance_off():
    balancer = build.balancer(build.instance("a"))
    for number in range(8):
        arrive(balancer, f"warm {number}")
        balancer.handle(Finished(f"warm {number}"), balancer.at)
    circuits = balancer.faults.circuits
    seen = []
    for number in range(3):
        arrive(balancer, f"call {number}")
        balancer.handle(Failed(f"call {number}", "500", by_instance=True, body=number), balancer.at)
        seen.append(circuits.state("a", balancer.at))
    assert seen == ["closed", "closed", "open"]


def test_one_of_which_nothing_is_known_is_left_alone_after_its_first_failure():
    balancer = build.balancer(build.instance("a"), build.instance("b"))
    [first] = arrive(balancer, "call")
    bounce(balancer, "call", BODY)
    assert balancer.faults.circuits.state(first, balancer.at) == "open"


def test_a_circuit_that_a_poisonous_call_opened_closes_with_the_verdict(balancer):
    """They served nothing for long, so one failure is enough."""
    arrive(balancer, "bad", at=balancer.at + 120 * SECOND)
    bounce(balancer, "bad", BODY)
    assert list(states(balancer).values()).count("open") == 1
    bounce(balancer, "bad", BODY)
    assert set(states(balancer).values()) == {"closed"}


def test_who_is_tried_again_is_not_blamed_for_a_call_that_others_failed_too(balancer):
    circuits, at = balancer.faults.circuits, balancer.at + SECOND
    arrive(balancer, "bad")
    [second] = bounce(balancer, "bad", BODY)
    circuits.open_circuit(second.instance_id, balancer.at)

    assert circuits.state(second.instance_id, at) == "half-open"
    balancer.handle(Bounced("bad", "broke", BODY), at)
    assert circuits.state(second.instance_id, at) == "half-open"


def test_one_that_fails_some_calls_comes_back_while_it_serves_most():
    balancer = build.balancer(build.instance("a"))
    circuits = balancer.faults.circuits
    arrive(balancer, "first")
    balancer.handle(Failed("first", "500", by_instance=True, body=1), balancer.at)
    at = balancer.at + SECOND
    states = []
    for number, fails in enumerate([False, False, True, False, True]):
        arrive(balancer, f"call {number}", at=at)
        name = f"call {number}"
        failed = Failed(name, "500", by_instance=True, body=2 + number)
        balancer.handle(failed if fails else Finished(name), at)
        states.append(circuits.state("a", at))
    assert states == ["half-open"] * 5

    arrive(balancer, "last", at=at)
    balancer.handle(Failed("last", "500", by_instance=True, body=9), at)
    assert circuits.state("a", at) == "open"


def test_the_instances_own_words_switch_it_off_and_condemn_no_call(balancer):
    for number in range(9):
        arrive(balancer, f"call {number}")
        bounce(balancer, f"call {number}", BODY, about_itself=True)
    assert "open" in states(balancer).values()
    attribution = balancer.faults._attribution
    assert max(attribution.rate(each, balancer.at) for each in "abc") > UNTRUSTED
    assert not attribution.is_poisonous(BODY, balancer.at)
