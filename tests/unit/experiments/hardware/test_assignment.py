"""G3 to G5: the paper's worked example, soft targets, split tasks and capacity."""

import math

import msgspec
import pytest

from experiments.hardware.assignment import AssignmentProblem, TaskCost, assign

EDGE = ("prefill", "decode")
# Table 3 of the paper with the costs that its sums use: those that the table prints are ten times
# as high for HP (docs/research/hardware.md).
PAPER = AssignmentProblem(
    tasks={
        "prefill": {
            "HP": TaskCost(s=0.080, usd=1000 * 0.00008),
            "CO": TaskCost(s=0.130, usd=1000 * 0.00005),
        },
        "decode": {
            "HP": TaskCost(s=0.025, usd=500 * 0.00006),
            "CO": TaskCost(s=0.030, usd=500 * 0.00002),
        },
    },
    edges=[EDGE],
    transfers={(EDGE, "HP", "CO"): TaskCost(s=0.010, usd=1000 * 0.000005)},
    target_s=0.120,
)
REPLACE = msgspec.structs.replace


def forced(prefill, decode, **more):
    """The example with no choice left."""
    tasks = {
        "prefill": {prefill: PAPER.tasks["prefill"][prefill]},
        "decode": {decode: PAPER.tasks["decode"][decode]},
    }
    return assign(REPLACE(PAPER, tasks=tasks, **more))


def test_g3_the_worked_example_prefills_on_hp_and_decodes_on_co():
    found = assign(PAPER)
    assert (found.where("prefill"), found.where("decode")) == ("HP", "CO")
    # by hand: 1000 * 0.00008 + 500 * 0.00002 + 1000 * 0.000005 = 0.08 + 0.01 + 0.005
    assert found.usd == pytest.approx(0.095)
    assert found.s == pytest.approx(0.080 + 0.010 + 0.030)  # 120 ms: just in time
    assert found.late_s == 0


def test_g3_option_a_costs_011_and_is_in_time():
    found = forced("HP", "HP")
    assert found.usd == pytest.approx(0.08 + 0.03)  # 0.11
    assert found.s == pytest.approx(0.105)


def test_g3_option_c_is_infeasible_and_costs_006_not_007():
    assert forced("CO", "CO") is None
    found = forced("CO", "CO", target_s=math.inf)
    assert found.usd == pytest.approx(0.05 + 0.01)  # the paper prints 0.07
    assert found.s == pytest.approx(0.160)


def test_g3_with_the_costs_that_the_table_prints_hp_is_ten_times_as_dear():
    printed = {
        "prefill": {
            "HP": TaskCost(s=0.080, usd=1000 * 0.0008),
            "CO": PAPER.tasks["prefill"]["CO"],
        },
        "decode": {"HP": TaskCost(s=0.025, usd=500 * 0.0006), "CO": PAPER.tasks["decode"]["CO"]},
    }
    found = assign(REPLACE(PAPER, tasks=printed))
    assert (found.where("prefill"), found.where("decode")) == ("HP", "CO")
    assert found.usd == pytest.approx(0.815)


@pytest.mark.parametrize(
    ("usd_per_s_late", "places", "s"),
    [
        (0.0, ("CO", "CO"), 0.160),
        (0.87, ("CO", "CO"), 0.160),  # 0.06 + 0.04 * 0.87 < 0.095
        (0.88, ("HP", "CO"), 0.120),
        (math.inf, ("HP", "CO"), 0.120),
    ],
)
def test_g4_a_soft_target_is_missed_where_that_saves_more_than_it_costs(usd_per_s_late, places, s):
    found = assign(REPLACE(PAPER, usd_per_s_late=usd_per_s_late))
    assert (found.where("prefill"), found.where("decode")) == places
    assert found.s == pytest.approx(s)
    if usd_per_s_late:
        assert found.late_s == pytest.approx(s - 0.120)


def test_g4_a_target_that_nothing_meets_is_infeasible_when_hard_and_late_when_soft():
    assert assign(REPLACE(PAPER, target_s=0.1)) is None
    found = assign(REPLACE(PAPER, target_s=0.1, usd_per_s_late=1e6))
    assert found.s == pytest.approx(0.105)
    assert found.late_s == pytest.approx(0.005)


def test_g4_a_task_may_have_a_target_of_its_own():
    found = assign(REPLACE(PAPER, target_s=math.inf, task_targets_s={"decode": 0.027}))
    assert found.where("decode") == "HP"


def test_between_hardware_without_a_named_transfer_nothing_goes():
    assert forced("CO", "HP", target_s=math.inf) is None


def test_g5_split_tasks_fill_what_is_cheap_up_to_its_capacity():
    many = AssignmentProblem(
        tasks={
            "prefill": {
                "HP": TaskCost(s=0.08, usd=8.0, uses={"devices": 2.0}),
                "CO": TaskCost(s=0.13, usd=5.0, uses={"devices": 4.0}),
            }
        },
        capacity={"CO": {"devices": 1.0}},
    )
    assert assign(many).shares == {"prefill": {"HP": 1.0}}
    split = assign(REPLACE(many, fractions=True))
    assert split.shares["prefill"] == pytest.approx({"HP": 0.75, "CO": 0.25})
    assert split.usd == pytest.approx(7.25)


def test_g5_capacity_that_nothing_fits_is_infeasible():
    full = REPLACE(PAPER, tasks={"t": {"HP": TaskCost(s=1, usd=1, uses={"gb": 2})}}, edges=[],
                   transfers={}, capacity={"HP": {"gb": 1}})  # fmt: skip
    assert assign(full) is None
