"""`python -m bench.poisoned` in small: what it compares must be comparable."""

import pytest

from bench.poisoned import ENGINE
from bench.poisoned_pool import HONEST, OTHER, SharedPool, Work
from kairos.learnt import POOLED

WORK = Work(per_s=1.0)


@pytest.fixture(scope="module")
def pools():
    kinds = ("neighbour", "fans out", "poisoned")
    return {kind: SharedPool(WORK, ENGINE, kind, 0).play(200, 500) for kind in kinds}


@pytest.mark.long
def test_the_honest_tenant_asks_for_the_same_beside_any_other(pools):
    counts = {each.calls[HONEST] for each in pools.values()}
    assert max(counts) - min(counts) < 0.2 * min(counts)  # of those that ended in time
    assert all(len(each.latencies_s) > 30 for each in pools.values())


def test_the_other_has_as_many_calls_but_for_those_that_were_cancelled(pools):
    assert pools["poisoned"].calls[OTHER] > 50
    assert pools["fans out"].calls[OTHER] > pools["poisoned"].calls[OTHER]


def test_the_poisoned_one_has_names_without_end_and_the_honest_ones_agents_are_known(pools):
    profiles = pools["poisoned"].learner.orchestrator.profiles
    names = [each.agent for each in profiles.status(OTHER) if each.agent != POOLED]
    assert len(names) > 50
    assert {each.agent for each in profiles.status(HONEST)} > {"agent 0", "agent 1", "agent 2"}
