"""A batch beside agents, on simulated engines."""

import pytest

from experiments import e46_batch

SEED = 1
# A short night has ends at which the batch begins and dries up: a smaller share of it is used.
NIGHTS = [
    pytest.param(10, 0.75, id="short"),
    pytest.param(20, e46_batch.USED_AIM, id="whole", marks=pytest.mark.long),
]


def planned(workflows):
    rate, most = e46_batch.LOADS["night"]
    assert workflows <= most
    return e46_batch.WORKLOAD.submissions(rate, workflows, SEED)


@pytest.mark.parametrize(("workflows", "used"), NIGHTS)
def test_h11_beside_a_batch_online_p99_is_at_most_1_10_times_as_long_and_the_night_is_used(
    workflows, used
):
    night = e46_batch.run((), planned(workflows))
    beside = e46_batch.run(
        e46_batch.documents(e46_batch.MORE_THAN_ENOUGH, SEED), planned(workflows)
    )
    batch = e46_batch.run(e46_batch.documents(e46_batch.ALONE, SEED), ())

    assert len(beside.e2e_s) == len(night.e2e_s) == workflows
    assert e46_batch.p99(beside.e2e_s) <= e46_batch.P99_AIM * e46_batch.p99(night.e2e_s)
    # Of the whole pool, of which the agents use some, too.
    share = (beside.documents / beside.lasted_s) / (batch.documents / batch.lasted_s)
    assert share >= used


def test_the_same_seed_gives_the_same_batch():
    first, second = (e46_batch.run(e46_batch.documents(300, SEED), planned(4)) for _ in range(2))

    assert first == second
    assert first.documents
