"""Whose line goes next, and when a batch rises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.batches.batch_turns import AHEAD, AHEAD_OF_ALL, BatchTurns, Pace, lines_ahead, rises
from kairos.core import SECOND

HOUR = 3_600 * SECOND
DAY = 24 * HOUR


def play(turns, batches, count, *, at_once=4):
    """Sends so many lines, so many of them in flight; `batches`: tokens of each one's lines.
    Returns the tokens that each was served."""
    served, flying = dict.fromkeys(batches, 0), []
    for _ in range(count):
        name = turns.next(batches)
        flying.append((name, turns.charge_line(name)))
        if len(flying) > at_once:
            ended, charged = flying.pop(0)
            turns.correct_charge(ended, charged, batches[ended])
            served[ended] += batches[ended]
    return served


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 2_000), min_size=1))
def test_batches_have_equal_tokens_however_long_their_lines_are(batches):
    turns = BatchTurns()
    for name in batches:
        turns.add_batch(name)
    served = play(turns, batches, 1_000)

    longest = max([*batches.values(), 256])
    assert max(served.values()) - min(served.values()) <= 12 * longest


def test_one_that_begins_later_catches_nothing_up():
    turns = BatchTurns()
    turns.add_batch("a")
    play(turns, {"a": 100}, 500)
    turns.add_batch("b")
    served = play(turns, {"a": 100, "b": 100}, 200)

    assert abs(served["a"] - served["b"]) <= 1_200


def test_one_that_has_nothing_to_send_does_not_hold_up_the_others():
    turns = BatchTurns()
    turns.add_batch("a")
    turns.add_batch("b")

    assert turns.next(["b"]) == "b"
    assert turns.next([]) is None
    turns.charge_line("b") if turns.next(["b"]) else None
    turns.remove_batch("a")
    assert turns.next(["b"]) == "b"
    assert len(turns) == 1


def test_what_was_not_served_is_not_charged():
    turns = BatchTurns()
    turns.add_batch("a")
    turns.add_batch("b")
    for _ in range(50):
        assert turns.next(["a"]) == "a"
        turns.correct_charge("a", turns.charge_line("a"), None)
    served = play(turns, {"a": 100, "b": 100}, 100)

    assert abs(served["a"] - served["b"]) <= 1_200


def test_so_many_lines_wait_ahead_that_batches_never_fill_the_queue():
    assert lines_ahead(0) == lines_ahead(1) == AHEAD
    for tenants in range(1, AHEAD_OF_ALL + 1):
        assert 1 <= lines_ahead(tenants) <= AHEAD
        assert tenants * lines_ahead(tenants) <= AHEAD_OF_ALL


@pytest.mark.parametrize(
    ("lines", "line_us", "at", "is_late"),
    [
        (1_000, None, 0, False),  # nothing is known of it, and there is time
        (1_000, 1 * SECOND, 0, False),
        (
            1_000,
            1 * SECOND,
            21 * HOUR,
            False,
        ),  # 17 minutes of work, 36 minutes until the last tenth
        (2_500, 1 * SECOND, 21 * HOUR, True),
        (90_000, 1 * SECOND, 0, True),  # it will not be done in any case
        (1, None, 22 * HOUR, True),  # the last tenth
        (0, 1 * SECOND, 23 * HOUR, False),  # nothing is left
    ],
)
def test_a_batch_rises_when_what_is_left_takes_longer_than_its_window_has(
    lines, line_us, at, is_late
):
    assert rises(lines, line_us, at, 0, DAY) is is_late


@given(st.integers(0, 10_000), st.none() | st.floats(1, 1e8), st.integers(0, DAY))
def test_one_that_has_risen_would_rise_at_any_later_time_with_as_much_left(lines, line_us, at):
    if rises(lines, line_us, at, 0, DAY):
        assert rises(lines, line_us, at + HOUR, 0, DAY)


def test_the_pace_is_the_best_that_was_seen():
    pace, at = Pace(0), 0
    for each_us in [SECOND] * 16 + [SECOND // 10] * 16 + [HOUR] * 16:
        at += each_us
        pace.count_line(at)

    assert pace.line_us == SECOND / 10
