"""Flows on two real vLLM: what is made of the rows, which are kept, and what is still to run."""

import pytest
from rich.console import Console

from experiments import flows_vllm
from experiments.e47_flows_real import (
    IN_ONE_PROCESS,
    KAIROS,
    ONE,
    OPWISE,
    REPETITIONS,
    Row,
    figures,
    section,
    times_as_long,
)
from experiments.flows_vllm import Measurement, kept_rows
from experiments.flows_vllm_cases import CASES, DevicesCase, Outcome, PoolCase
from experiments.flows_vllm_run import Ran


def row(system, s, repetition=1, case="parallel", **of):
    given = {"commit": "c", "date": "2026-01-02", "rows": 10, "simulated_s": s / 2, "calls": 30}
    given |= {"loads": 0, "cached_share": 0.25, "others": 0.1}
    return Row(case=case, system=system, repetition=repetition, s=s, **given | of)


def rows(repetitions=REPETITIONS):
    return [
        made
        for n in range(1, repetitions + 1)
        for made in (
            row(KAIROS, 2.0 * n, n),
            row(OPWISE, 6.0 * n, n, simulated_s=5.0 * n),
            row(ONE, 4.0 * n, n, rows=1),
        )
    ]


def test_systems_are_compared_by_the_time_of_a_row_within_repetitions():
    found = times_as_long(rows(), OPWISE)
    assert (found.mean, found.low, found.high) == pytest.approx((3, 3, 3))
    assert times_as_long(rows(), ONE).mean == pytest.approx(20)
    assert times_as_long([*rows(), row(OPWISE, 99.0, 9)], OPWISE).mean == pytest.approx(3)
    assert times_as_long(rows(1), OPWISE) is None


def test_the_section_has_what_was_measured_beside_what_was_simulated():
    even = row(KAIROS, 7.0, 1, "W3", others=None, loads=2, busiest=0.5)
    text = section([*rows(), even])
    assert (
        "| parallel, opwise | 3 x 10 | 12.0 | 30 | 0.0 | 25 % |  | 3.00 [3.00, 3.00] | 5.00" in text
    )
    assert "| W3, kairos | 1 x 10 | 7.0 | 30 | 2.0 | 25 % | 50 % | 1.00 | 1.00 |" in text
    assert "commit c, 2026-01-02" in text
    assert "up to 0.10 cores" in text


def test_a_case_has_its_figure_once_all_repetitions_are_there():
    [figure] = figures([*rows(), *(row(KAIROS, 1.0, n, "W3") for n in (1, 2))])
    assert "parallel" in figure.name
    assert (figure.value, figure.detail) == (3.0, {OPWISE: 3.0, ONE: 20.0})
    assert figures(rows(REPETITIONS - 1)) == []


def test_the_figure_compares_declared_flows_with_others_alone():
    quicker = [row(IN_ONE_PROCESS, 1.0, n) for n in range(1, REPETITIONS + 1)]
    assert figures([*rows(), *quicker]) == figures(rows())


def test_rows_of_another_commit_make_way_only_for_those_of_the_same_case(monkeypatch):
    monkeypatch.setattr(flows_vllm, "commit", lambda: "d")
    here, other = row(KAIROS, 1.0, commit="d"), row(OPWISE, 1.0)
    of_w3 = row(KAIROS, 1.0, case="W3")
    parallel = [each for each in CASES if each.name == "parallel"]
    assert kept_rows([here, other, of_w3], parallel) == [here, of_w3]


class CountedCase(DevicesCase, frozen=True):
    async def run(self, system, repetition):
        return Outcome(self.rows, Ran(s=1.5, calls=4, cached_share=0.5, others=-0.5, loads=2), 0.5)


async def test_only_what_is_missing_runs_and_rows_are_kept_after_each_run():
    kept = []
    measurement = Measurement(
        Console(quiet=True),
        [row(KAIROS, 1.0, case="W3")],
        lambda rows: kept.append([(each.repetition, each.system) for each in rows]),
    )

    def no_pool(tell):
        raise AssertionError("engines were started for nothing")

    await measurement.run([CountedCase("W3", 4)], 2, no_pool)
    assert [len(each) for each in kept] == [2, 3, 4]
    assert sorted(kept[-1]) == [
        (1, "kairos"),
        (1, "topological"),
        (2, "kairos"),
        (2, "topological"),
    ]
    made = measurement.rows[-1]
    assert (made.s, made.loads, made.others) == (1.5, 2, None)


def test_a_repetition_has_an_order_of_its_own():
    measurement = Measurement(Console(quiet=True), (), lambda _: None)
    [case] = [each for each in CASES if each.name == "trading"]
    assert isinstance(case, PoolCase)
    todo = list(measurement._missing(case, 3))
    orders = [[system for n, system in todo if n == repetition] for repetition in (1, 2, 3)]
    assert [sorted(each) for each in orders] == [sorted(case.systems)] * 3
    assert len({tuple(each) for each in orders}) > 1
