"""Times as they are given to `kairos happened`."""

from datetime import datetime

import pytest

from kairos.cli.happened import _last
from kairos.core import SECOND


def at(*when):
    return round(datetime(*when).timestamp() * SECOND)


@pytest.mark.parametrize(
    ("clock", "when"),
    [
        ("03:12", (2026, 3, 2, 3, 12)),
        ("14:30:05", (2026, 3, 2, 14, 30, 5)),
        ("14:31", (2026, 3, 1, 14, 31)),  # not yet today
    ],
)
def test_a_time_of_the_day_is_the_last_one(clock, when):
    assert _last(clock, at(2026, 3, 2, 14, 30, 5)) == at(*when)


@pytest.mark.parametrize("other", ["2h", "2025-06-30T03:12", "0312", "25:00", "all", ""])
def test_what_is_no_time_of_a_day_is_left_to_others(other):
    assert _last(other, at(2026, 3, 2)) is None
