"""Rows in flight follow from the pool's capacity, and from the bytes that rows take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.workflows import FlowLimits
from kairos.workflows.execute.limits import MOST_IN_FLIGHT, OPEN_ROWS
from kairos.workflows.execute.windows import RowIntake
from tests.support.examples import examples


def read_all(intake, size_bytes, wanted):
    """Ask and read until nothing more may be asked for; return how many rows are open."""
    while count := intake.rows_to_ask(wanted - intake.open):
        intake.asked += count
        for _ in range(count):
            intake.open_row(size_bytes)
    return intake.open


@given(
    capacity=st.integers(1, 20_000),
    later=st.integers(1, 20_000),
    size_bytes=st.integers(1, 60_000),
    told=st.sampled_from([None, None, 1, 300]),
)
@examples(60)
def test_as_many_rows_are_open_as_fill_the_pool_or_the_bytes(capacity, later, size_bytes, told):
    limits = FlowLimits(capacity=capacity, max_open_rows=told, max_open_bytes=1 << 26)
    intake = RowIntake(limits)
    intake.resize(later)

    opened = read_all(intake, size_bytes, wanted=100_000)

    by_pool = max(OPEN_ROWS, min(2 * later, MOST_IN_FLIGHT) + later) if told is None else told
    by_bytes = max(1, limits.max_open_bytes // max(256, size_bytes))
    largest = max(256, size_bytes)
    assert opened <= by_pool
    assert opened * size_bytes <= max(limits.max_open_bytes, size_bytes)
    assert opened >= min(by_pool, by_bytes) - limits.max_open_bytes // largest // 100 - 1


@pytest.mark.parametrize("capacity", [1, 64, 2_048, 4_096, 8_192, 16_384])
def test_small_rows_fill_a_pool_of_any_size_twice_or_the_balancers_queue(capacity):
    opened = read_all(RowIntake(FlowLimits(capacity=capacity)), 200, wanted=100_000)

    assert opened >= min(2 * capacity, MOST_IN_FLIGHT) + capacity
