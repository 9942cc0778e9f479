"""A batch beside agents, on simulated engines."""

import pytest

from experiments import e46_batch

SEED = 1


@pytest.fixture(scope="module")
def night():
    rate, count = e46_batch.LOADS["night"]
    planned = e46_batch.WORKLOAD.submissions(rate, count, SEED)
    return planned, e46_batch.run((), planned)


@pytest.fixture(scope="module")
def beside(night):
    return e46_batch.run(e46_batch.documents(e46_batch.MORE_THAN_ENOUGH, SEED), night[0])


def test_h11_online_p99_is_at_most_1_10_times_as_long_beside_a_batch(night, beside):
    alone = e46_batch.p99(night[1].e2e_s)

    assert len(beside.e2e_s) == len(night[1].e2e_s)
    assert e46_batch.p99(beside.e2e_s) <= e46_batch.P99_AIM * alone


def test_h11_the_batch_uses_85_percent_of_what_is_spare_at_night(beside):
    alone = e46_batch.run(e46_batch.documents(e46_batch.ALONE, SEED), ())
    share = (beside.documents / beside.lasted_s) / (alone.documents / alone.lasted_s)

    assert share >= e46_batch.USED_AIM  # of the whole pool, of which the agents use some, too


def test_the_same_seed_gives_the_same_batch(night, beside):
    again = e46_batch.run(e46_batch.documents(e46_batch.MORE_THAN_ENOUGH, SEED), night[0])

    assert again == beside
