"""Forecasts that are kept, and the table, are as the ledger says; in the cases in which that is
easily missed. Laws: `property/core/test_ledger_laws.py`."""

import pytest
from msgspec.structs import replace

from kairos.core import (
    SECOND,
    SLOTS,
    BySurvival,
    Finished,
    InstanceStatus,
    Ledger,
    exponential_distribution,
)
from kairos.core.dispatcher.instance_table import InstanceTable
from kairos.core.dispatcher.occupancy import RENEWED_US, Occupancy, by_modes, of_request
from tests.support.simulate import build

INSTANCE = build.instance("a", kv=1000)
KNOWN = build.Lengths(
    tokens={"x": exponential_distribution(100.0)},
    latency_us={"x": exponential_distribution(4.0 * SECOND)},
)


def ledger(*instances):
    made = Ledger(KNOWN)
    for each in instances or [INSTANCE]:
        made.add_instance(each)
    return made


def derived(ledger, derive=None):
    """A forecast that counts how often it is derived."""
    asked, derive = [], derive or BySurvival()

    def count(*arguments):
        asked.append(arguments[1].id)
        return derive(*arguments)

    return Occupancy(ledger, count), asked


@pytest.mark.parametrize("derive", [by_modes, BySurvival()])
def test_nothing_runs_nothing_is_held(derive):
    occupancy, _ = derived(ledger(), derive)
    means, variances, most = occupancy.of([INSTANCE], 0)
    assert not means.any()
    assert not variances.any()
    assert not most.any()


def test_an_instance_that_left_and_came_back_within_a_slot_is_looked_at_anew():
    made = ledger()
    occupancy, _ = derived(made)
    made.book(build.request("before", prompt=100, agent="x"), "a", 0)
    assert occupancy.of([INSTANCE], 0)[0][0, 0] > 50
    made.release_booking("before", 1)
    made.remove_instance("a")
    made.add_instance(INSTANCE)
    made.book(build.request("since", prompt=900, agent="x"), "a", 2)
    assert occupancy.of([INSTANCE], 2)[0][0, 0] > 500


def test_rows_of_instances_that_left_are_used_again():
    made = ledger()
    occupancy, _ = derived(made)
    for n in range(50):
        instance = build.instance(f"i{n}", kv=1000)
        made.add_instance(instance)
        made.book(build.request(f"r{n}", prompt=10 * n + 10), instance.id, n)
        mean = BySurvival()(made, instance, n)[0]
        assert (occupancy.of([INSTANCE, instance], n)[0][1] == mean).all()
        made.remove_instance(instance.id)
    assert len(occupancy.forecasts[0]) <= 3
    assert occupancy.table._values.shape[1] <= 3
    assert len(occupancy.table._paces) <= 4


def test_a_request_alone_holds_what_it_would_there():
    made = ledger(INSTANCE, build.instance("b"))
    request = build.request("r", prompt=100, agent="x", completion_limit=1)
    held, token_us = build.floats(100, 60), build.floats(10_000, 10_000)
    means, variances, most = of_request(made, request, held, token_us, build.floats(0, SECOND))
    assert means.shape == variances.shape == most.shape == (2, SLOTS)
    assert means[0].tolist() == [100] + [0] * (SLOTS - 1)
    assert means[1].tolist() == [60, 60, 60] + [0] * (SLOTS - 3)  # in a second it begins
    assert most[1, [0, 2, 3, 14]].tolist() == [60, 60, 110, 60 + 50 * 45]  # should it not end
    assert not variances.any()


def test_an_instance_that_comes_back_is_not_taken_for_what_it_said_before():
    made = ledger()
    table = InstanceTable(made)
    made.book(build.request("r"), "a", 0)
    made.record_status(InstanceStatus("a", kv_used=1.0, preemptions=0), 0)
    made.record_status(InstanceStatus("a", kv_used=1.0, preemptions=1), 1)
    assert table.suspended(table.rows([INSTANCE]), 1)[0]
    made.remove_instance("a")
    other = build.instance("b")
    made.add_instance(other)
    assert not table.suspended(table.rows([other]), 1)[0]  # while the first is away
    made.add_instance(INSTANCE)
    rows = table.rows([INSTANCE])
    assert not table.suspended(rows, 1)[0]
    assert table.capacities(rows, 1)[0] == 1000


@pytest.mark.interpreted
def test_a_few_changes_among_many_calls_count_as_if_these_were_like_the_others(monkeypatch):
    made, whole = ledger(replace(INSTANCE, kv_tokens=None)), []
    [instance] = made.served.serving(None)
    together = made.curves.together
    monkeypatch.setattr(made.curves, "together", lambda *a: whole.append(a) or together(*a))
    for n in range(40):
        made.book(build.request(f"r{n}", prompt=100 + n, agent="x"), "a", 0)
    derive = BySurvival()
    before, spread, _ = derive(made, instance, SECOND)
    made.release_booking("r7", SECOND, Finished("r7", completion_tokens=30))
    made.book(build.request("new", prompt=400, agent="x"), "a", SECOND)
    made.record_progress({"r9": 31}, SECOND)
    for _ in range(2):  # asked again, it is not counted again
        means, variances, _ = derive(made, instance, SECOND)
    assert len(whole) == 1
    assert means[0] == pytest.approx(before[0] - 107 - 30 + 400)
    assert variances == pytest.approx(spread * means[0] / before[0])
    expected, *_ = BySurvival()(made, instance, SECOND)
    assert means == pytest.approx(expected, rel=0.08)
    assert abs(means[:8] - expected[:8]).sum() < 0.5 * abs(before[:8] - expected[:8]).sum()

    made.release_booking("r8", SECOND)
    made.release_booking("r9", SECOND)
    derive(made, instance, SECOND)
    assert len(whole) == 3  # too many: all of them were looked at again
    derive(made, instance, SECOND + RENEWED_US)
    assert len(whole) == 4


def test_what_calls_shared_is_not_expected_to_be_shared_when_their_instance_comes_back():
    made, alike = ledger(), {"prefix": (1, 2, 3, 4), "prefix_units": 256, "agent": "x"}
    for name in ("one", "two"):
        made.book(build.request(name, prompt=256, **alike), "a", 0)
    derive = BySurvival()
    shared = derive(made, INSTANCE, 0)[0][0]
    made.remove_instance("a")
    made.add_instance(INSTANCE)
    assert derive(made, INSTANCE, 0)[0][0] > 1.8 * shared
