"""Halo's cost, by hand."""

import pytest

from experiments.halo_cost import ReuseFactors, WorkerOperator, placement_us, worker_us

FACTORS = ReuseFactors(gamma=0.5, sigma=0.25, lambda_=0.8, beta=0.5)


def test_h2_halo_weighs_inference_and_preparation_by_what_is_reused():
    first = WorkerOperator(inference_us=100, preparation_us=40)
    again = WorkerOperator(
        inference_us=60, preparation_us=40, reuses_context=True, reuses_model=True
    )
    fetched = WorkerOperator(inference_us=10, preparation_us=40, reuses_retrieval=True)
    assert worker_us([first], FACTORS) == 100 + 40
    assert worker_us([first, again], FACTORS) == 140 + 0.5 * 60 + 0.25 * 40
    assert worker_us([first, fetched], FACTORS) == 140 + 10 + 0.8 * 40


def test_h2_halo_divides_replicated_work_by_less_than_their_number():
    assert worker_us([WorkerOperator(inference_us=100, replicas=4)], FACTORS) == 100 / 4**0.5


def test_h2_halo_adds_the_slowest_worker_and_a_share_of_what_is_left():
    workers = [
        [WorkerOperator(inference_us=100)],
        [WorkerOperator(inference_us=70), WorkerOperator(inference_us=50)],
        [],
        [],
    ]
    assert placement_us(workers, [30, 10], FACTORS) == pytest.approx(120 + 40 / 4**0.5)
    assert placement_us([], [30], FACTORS) == 30
