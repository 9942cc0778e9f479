"""What instances say of themselves."""

import pytest

from kairos.core import SECOND, InstanceStatus
from kairos.core.dispatcher.instance_health import EASED, PRESSED, STALE_US, InstanceHealth
from tests.support.simulate import build

INSTANCE = build.instance("i", kv=1000)
BELOW, BETWEEN, ABOVE = EASED, (PRESSED + EASED) / 2, PRESSED


class Told:
    def __init__(self, instance=INSTANCE):
        self.health, self.at, self.instance = InstanceHealth(), 0, instance

    def tell(self, *, held=0.0, unheard=0.0, ours=1, **fields):
        """A second later; returns whether it is suspended."""
        self.at += SECOND
        status = InstanceStatus(self.instance.id, **fields)
        self.health.record_report(status, self.instance, (held - unheard, held), ours, self.at)
        return self.health.is_suspended(self.instance.id, self.at)

    def unseen(self, later=0):
        return self.health.unseen_tokens(self.instance, self.at + later)


def test_nothing_is_known_of_who_says_nothing():
    told = Told()
    assert not told.health.is_suspended("i", 0)
    assert told.unseen() == told.unseen(later=100 * SECOND) == 0
    assert not told.tell()
    assert told.unseen() == 0


def test_a_preemption_suspends_and_only_a_new_one_does():
    told = Told()
    assert not told.tell(preemptions=7, kv_used=0.5)  # since it started, before we came
    assert told.tell(preemptions=8, kv_used=0.5)
    assert not told.tell(preemptions=8, kv_used=0.5)
    assert not told.tell(preemptions=2, kv_used=0.5)  # it was started anew
    assert told.tell(preemptions=3, kv_used=0.5)


def test_who_was_preempted_and_is_back_already_was_not_short_for_long():
    told = Told()
    told.tell(preemptions=0)
    assert not told.tell(preemptions=1, waiting=0)
    assert told.tell(preemptions=2, waiting=1)
    assert told.tell(preemptions=3, waiting=0, waiting_for_room=1)


@pytest.mark.parametrize("waits", [{"waiting": 1}, {"waiting_for_room": 1}])
def test_what_waits_beside_a_free_sequence_while_memory_is_short_suspends(waits):
    assert Told().tell(kv_used=ABOVE, running=3, **waits)
    assert Told().tell(kv_used=ABOVE, **waits)
    assert not Told().tell(kv_used=ABOVE, running=INSTANCE.max_num_seqs, **waits)
    assert not Told().tell(kv_used=BETWEEN, running=3, **waits)  # it has just come
    assert not Told().tell(kv_used=ABOVE, running=3, waiting=0, waiting_for_room=0)
    assert not Told().tell(**waits)


def test_it_takes_less_to_stay_suspended_than_to_become_so():
    told = Told()
    assert not told.tell(kv_used=BETWEEN, waiting=1)
    assert told.tell(kv_used=ABOVE, waiting=1)
    assert told.tell(kv_used=BETWEEN, waiting=0)
    assert not told.tell(kv_used=BELOW, waiting=0)
    assert not told.tell(kv_used=BETWEEN, waiting=1)


def test_who_has_nothing_of_ours_is_never_suspended():
    """Or nothing would ever free it."""
    told = Told()
    told.tell(kv_used=1.0, preemptions=0, ours=0)
    assert not told.tell(kv_used=1.0, preemptions=1, ours=0)


def test_a_suspension_of_which_nothing_more_is_heard_ends():
    told = Told()
    told.tell(preemptions=0)
    assert told.tell(preemptions=1, kv_used=1.0)
    assert told.health.is_suspended("i", told.at + STALE_US)
    assert not told.health.is_suspended("i", told.at + STALE_US + 1)
    assert told.tell(kv_used=1.0)  # and goes on where it was


def test_a_status_that_is_stale_leaves_a_margin():
    told = Told()
    told.tell(kv_used=0.0)
    assert told.unseen(later=STALE_US) == 0
    assert told.unseen(later=STALE_US + 1) == told.unseen(later=10**12) == 50
    unknown = Told(build.instance("u"))
    unknown.tell(kv_used=0.5)
    assert unknown.unseen(later=10**12) == 0


def test_memory_that_is_in_use_beside_our_bookings_becomes_known():
    told = Told()
    seen = []
    for _ in range(8):
        told.tell(kv_used=0.5, held=200.0)
        seen.append(told.unseen())
    assert seen[0] == 150
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(300, rel=0.01)
    told.tell(held=900.0)  # it does not say
    assert told.unseen() == seen[-1]


def test_memory_that_bookings_overstate_counts_as_free_but_no_more_than_half_of_them():
    told = Told()
    for _ in range(20):
        told.tell(kv_used=0.3, held=400.0)
    assert told.unseen() == pytest.approx(-100, rel=0.01)
    for _ in range(20):
        told.tell(kv_used=0.0, held=400.0)
    assert told.unseen() == pytest.approx(-200, rel=0.01)


def test_memory_of_calls_that_have_not_begun_is_not_taken_for_free():
    told = Told()
    for used in (0.3, 0.2, 0.4):
        told.tell(kv_used=used, held=400.0, unheard=200.0)
        assert told.unseen() == 0
    told.tell(kv_used=0.1, held=400.0, unheard=200.0)
    assert told.unseen() == -50
    told.tell(kv_used=0.55, held=400.0, unheard=200.0)
    assert told.unseen() == pytest.approx(50)


def test_who_is_forgotten_starts_anew():
    told = Told()
    told.tell(preemptions=0)
    told.tell(preemptions=1, kv_used=1.0)
    told.health.forget_instance("i")
    assert not told.health.is_suspended("i", told.at)
    assert told.unseen() == 0
    assert not told.tell(preemptions=5)
    told.health.forget_instance("nobody")
