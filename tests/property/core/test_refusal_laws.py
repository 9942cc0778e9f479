"""What spares the work of looking closer changes no decision: beside a balancer that looks."""

import pytest
from hypothesis import given

from kairos.core import PLACEMENTS, POLICIES, Balancer
from kairos.core.dispatcher.available import AvailableInstances
from tests.property.core.test_replay import FACTS, LIMITS, Story, seen
from tests.support.examples import examples

pytestmark = pytest.mark.interpreted


class Nothing:
    """Refusals that remember none."""

    def __len__(self):
        return 0

    def forget(self):
        pass

    def awaited(self, *_, **__):
        return []

    def is_closed(self, *_):
        return False

    def covers(self, *_):
        return False

    def close(self, *_):
        pass

    def add(self, *_):
        pass


def thorough(policy, placement):
    made = Balancer(POLICIES[policy], PLACEMENTS[placement], **LIMITS)
    made._dispatching._placement._refused = Nothing()
    return made


@pytest.mark.parametrize("placement", ["time-slot", "kairos"])
@given(facts=FACTS)
@examples(80)
def test_what_was_refused_is_remembered_without_changing_a_decision(placement, facts):
    story = Story("kairos", placement)
    other = thorough("kairos", placement)
    story.go_on(facts)
    for record in story.log:
        assert tuple(other.handle(record.event, record.at)) == record.commands
    assert seen(other) == seen(story.balancer)


@pytest.mark.parametrize("placement", ["round-robin", "least-kv", "time-slot"])
@given(facts=FACTS)
@examples(40)
def test_headroom_spares_looking_and_changes_no_decision(placement, facts):
    story = Story("kairos", placement)
    story.go_on(facts)
    other = thorough("kairos", placement)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AvailableInstances, "_may_fit", lambda *_: True)
        for record in story.log:
            assert tuple(other.handle(record.event, record.at)) == record.commands
