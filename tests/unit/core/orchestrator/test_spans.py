import pytest

from kairos.core.orchestrator.spans import Span, parallel_groups


def groups(*times, skew_us=0):
    """The groups of spans from a to b, as lists of (a, b)."""
    spans = [
        Span(id=f"r{n}", agent="a", started_at=begin, finished_at=end)
        for n, (begin, end) in enumerate(times)
    ]
    found = parallel_groups(spans, skew_us)
    return [[(span.started_at, span.finished_at) for span in group] for group in found]


def test_no_spans_are_no_groups():
    assert groups() == []


def test_spans_that_overlap_are_one_group():
    assert groups((0, 10), (5, 15), (20, 30)) == [[(0, 10), (5, 15)], [(20, 30)]]


def test_spans_that_overlap_through_a_third_are_one_group():
    assert groups((0, 10), (9, 20), (19, 30)) == [[(0, 10), (9, 20), (19, 30)]]


def test_a_long_span_keeps_its_group_together_when_short_ones_end():
    assert groups((0, 100), (1, 2), (50, 60)) == [[(0, 100), (1, 2), (50, 60)]]


def test_touching_spans_are_sequential():
    assert groups((0, 10), (10, 20), (20, 30)) == [[(0, 10)], [(10, 20)], [(20, 30)]]


def test_groups_are_in_order_of_time_whatever_order_the_spans_come_in():
    assert groups((20, 30), (0, 10), (5, 15)) == [[(0, 10), (5, 15)], [(20, 30)]]


def test_spans_of_the_same_time_are_parallel():
    assert groups((0, 10), (0, 10)) == [[(0, 10), (0, 10)]]


def test_a_span_of_no_length_is_parallel_to_what_goes_on_around_it():
    assert groups((0, 10), (5, 5)) == [[(0, 10), (5, 5)]]


def test_a_span_of_no_length_is_sequential_to_what_begins_or_ends_there():
    assert groups((5, 9), (5, 5)) == [[(5, 5)], [(5, 9)]]
    assert groups((5, 9), (9, 9)) == [[(5, 9)], [(9, 9)]]
    assert groups((5, 5), (5, 5)) == [[(5, 5)], [(5, 5)]]


def test_an_overlap_of_no_more_than_the_skew_is_sequential():
    assert groups((0, 100), (97, 200), skew_us=3) == [[(0, 100)], [(97, 200)]]
    assert groups((0, 100), (96, 200), skew_us=3) == [[(0, 100), (96, 200)]]


def test_a_span_shorter_than_the_skew_is_parallel_only_inside_of_another():
    assert groups((0, 100), (50, 52), skew_us=10) == [[(0, 100), (50, 52)]]
    assert groups((0, 100), (4, 8), skew_us=10) == [[(0, 100), (4, 8)]]
    assert groups((0, 100), (1, 3), skew_us=10) == [[(1, 3)], [(0, 100)]]
    assert groups((0, 100), (98, 99), skew_us=10) == [[(0, 100)], [(98, 99)]]


def test_a_clock_that_was_set_back_gives_no_negative_work():
    span = Span(id="r", agent="a", started_at=10, finished_at=7)

    assert span.execution_us == 0
    assert parallel_groups([span]) == [[span]]


@pytest.mark.parametrize(("begin", "end"), [(3, 10), (3, 3)])
def test_execution_lasts_from_dispatch_to_end(begin, end):
    assert Span(id="r", agent="a", started_at=begin, finished_at=end).execution_us == end - begin
