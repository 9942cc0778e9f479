"""`python -m bench.poisoned` in small: what it compares must be comparable."""

import pytest

from bench.poisoned import ENGINE
from bench.poisoned_pool import HONEST, OTHER, SharedPool, Work
from kairos.core import POOLED_AGENT

WORK = Work(per_s=1.0)


@pytest.fixture(scope="module")
def pools():
    kinds = ("neighbour", "fans out", "poisoned")
    return {kind: SharedPool(WORK, ENGINE, kind, 0).play(200, 500) for kind in kinds}


def test_the_poisoned_one_has_names_without_end_and_the_honest_ones_agents_are_known(pools):
    profiles = pools["poisoned"].learner.orchestrator.profiles
    names = [each.agent for each in profiles.status(OTHER) if each.agent != POOLED_AGENT]
    assert len(names) > 50
    assert {each.agent for each in profiles.status(HONEST)} > {"agent 0", "agent 1", "agent 2"}
