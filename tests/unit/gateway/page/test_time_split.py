"""Where the time of a workflow went."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SECOND, CallRow
from kairos.gateway.page.workflows import TimeSplit, time_split
from tests.support.simulate import build


def call(arrived, gone=None, first=None, ended=None):
    in_us = [None if each is None else each * SECOND for each in (gone, first, ended)]
    return CallRow(build.request("r", at=arrived * SECOND), None, *in_us)


def split(*calls, started=0, until=10):
    return time_split(calls, started * SECOND, until * SECOND)


def test_the_parts_of_a_call_are_told_apart_and_the_rest_is_elsewhere():
    assert split(call(1, 3, 4, 8)) == TimeSplit(
        waiting_s=2.0, prompts_s=1.0, answering_s=4.0, elsewhere_s=3.0
    )


def test_of_calls_at_once_what_is_furthest_on_counts():
    assert split(call(0, 2, 4, 6), call(0, 5, 7, 8), until=8) == TimeSplit(
        waiting_s=2.0, prompts_s=2.0 + 1.0, answering_s=2.0 + 1.0
    )


def test_what_is_not_streamed_is_all_answer():
    assert split(call(0, 1, None, 4), until=4) == TimeSplit(waiting_s=1.0, answering_s=3.0)


def test_of_an_open_one_what_goes_on_counts_up_to_now():
    assert split(call(2), until=7) == TimeSplit(waiting_s=5.0, elsewhere_s=2.0)
    assert split(call(2, 3), until=7).answering_s == 4.0


def test_one_without_calls_or_time_has_no_parts():
    assert split() == TimeSplit(elsewhere_s=10.0)
    assert split(call(5, 6, 7, 8), started=9, until=9) == TimeSplit()


@given(
    st.lists(
        st.lists(st.integers(0, 50), min_size=4, max_size=4).map(lambda each: call(*sorted(each)))
    ),
    st.integers(0, 20),
    st.integers(20, 60),
)
def test_the_parts_come_to_the_whole(calls, started, until):
    found = split(*calls, started=started, until=until)
    parts = found.answering_s, found.prompts_s, found.waiting_s, found.elsewhere_s
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(until - started)
