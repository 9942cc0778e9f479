"""What calls are expected to need: by hand, and against the obvious sums."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import QUANTILES, SLOT_AT_US, SLOTS, Distribution, exponential_distribution
from kairos.core.dispatcher import demand
from kairos.core.dispatcher.demand import SLOT_AT, SLOT_US, Curves, expected, mode
from tests.support.core.learnt import always
from tests.support.simulate import build

INF = math.inf
# Ascending quantiles, no two of them alike.
DISTRIBUTIONS = st.lists(st.floats(0.1, 200), min_size=QUANTILES, max_size=QUANTILES).map(
    lambda steps: Distribution(sum(steps), tuple(np.cumsum(steps).tolist()))
)


def row_of(curves, request, known):
    return curves.row(request.agent, request, known)


def take(curves, request, known):
    return curves.lock_row(request.agent, request, known)


def curve(known, name="r", **fields):
    curves = Curves()
    return curves, row_of(curves, build.request(name, **fields), known)


def alive(curves, row, generated, token_us, limit=INF, delay_us=0):
    """The share of such calls that still run at the beginning of each slot."""
    ones = np.array([1000.0])
    generated = np.array([float(generated)])
    one = np.array([token_us])
    limits, delays = np.array([limit]), np.array([float(delay_us)])
    mean, *_ = curves.surviving(np.array([row]), ones, generated, limits, one, delays)
    return mean[0] / (1000 + np.maximum(0, SLOT_AT_US - delay_us) / token_us)


def test_the_mode_is_where_most_are():
    assert mode(Distribution(0, tuple(float(n * n) for n in range(64)))) == (0 + 64) / 2
    among_few = sorted([5.0] * 20 + [float(n) for n in range(100, 144)])
    assert mode(Distribution(0, tuple(among_few))) == 5.0
    at_the_end = sorted([float(n * 10) for n in range(44)] + [900.0] * 20)
    assert mode(Distribution(0, tuple(at_the_end))) == 900.0
    assert mode(always(7)) == 7.0


@given(DISTRIBUTIONS)
def test_the_mode_lies_among_the_values_and_the_shortest_stretch_is_about_it(known):
    found, quantiles = mode(known), known.quantiles
    assert quantiles[0] <= found <= quantiles[-1]
    about = min(range(56), key=lambda i: quantiles[i + 8] - quantiles[i])
    assert quantiles[about] <= found <= quantiles[about + 8]


def test_the_papers_demand_by_hand():
    """One has just begun and takes 1.2 s; one began 1 s ago and takes 2.3 s: 0.1 s a token."""
    tokens = expected(
        np.array([100.0, 50.0]),
        np.array([0.0, 1e6]),
        np.array([1.2e6, 2.3e6]),
        100_000.0,
    )
    assert tokens[:4].tolist() == [100 + 60, 105 + 65, 110 + 70, 0]
    assert not tokens[4:].any()


def test_the_papers_demand_of_a_call_shorter_than_a_slot_is_there_now():
    tokens = expected(np.array([10.0]), np.zeros(1), np.array([1.0]), 100_000.0)
    assert tokens.tolist() == [10.0, *[0.0] * (SLOTS - 1)]


@given(
    st.lists(
        st.tuples(st.integers(1, 9999), st.integers(0, 10**8), st.integers(1, 10**8)), max_size=9
    ),
    st.floats(1, 1e6),
)
def test_the_papers_demand_is_the_sum_over_calls(calls, token_us):
    columns = [np.array([float(c[i]) for c in calls]) for i in range(3)]
    total = np.zeros(SLOTS)
    for prompt, age_us, last_us in calls:
        for slot in range(SLOTS):
            ends = [*SLOT_AT, 2 * SLOT_AT[-1]][slot + 1] if slot + 1 < SLOTS else SLOT_AT[-1] + 1
            scanned = [age_us + at * SLOT_US for at in range(SLOT_AT[slot], ends)]
            if scanned[0] <= last_us:
                most_us = max(scanned[0], min(scanned[-1], last_us))
                total[slot] += prompt + most_us / token_us
    np.testing.assert_allclose(expected(*columns, token_us), total)


def longer(known, tokens):
    """The share of answers longer than so many tokens, by its definition."""
    quantiles, n = known.quantiles, len(known.quantiles)
    if tokens <= 0:
        return 1.0
    if tokens > quantiles[-1]:
        return 1 / (2 * n) * math.exp(-(tokens - quantiles[-1]) / excess(known))
    before, share = 0.0, 1.0
    for i, quantile in enumerate(quantiles):
        next_share = 1 - (i + 0.5) / n
        if tokens <= quantile:
            return share + (next_share - share) * (tokens - before) / (quantile - before)
        before, share = quantile, next_share
    raise AssertionError


def excess(known):
    top = known.quantiles[-len(known.quantiles) // 8 :]
    return max(sum(top) / len(top) - top[0], 0.05 * top[-1], 1.0)


@given(DISTRIBUTIONS, st.floats(0, 2), st.floats(500, 1e6))
def test_a_call_survives_as_those_that_had_come_as_far_did(known, part, token_us):
    curves, row = curve(known)
    end = known.quantiles[-1] + 4 * excess(known)
    width = end / 255  # how finely the curve is known
    generated = part * known.quantiles[-1]
    got = alive(curves, row, generated, token_us)

    assert got[0] == pytest.approx(1)
    assert all(0 <= b <= a + 1e-9 for a, b in pairwise(got))
    for share, us in zip(got, SLOT_AT_US, strict=True):
        now, then = generated, generated + us / token_us
        least = longer(known, then) / longer(known, now - width)
        most = longer(known, then - width) / longer(known, now)
        assert least * 0.99 <= share + 1e-4
        assert share <= most * 1.01 + 1e-9


@given(DISTRIBUTIONS, st.floats(1.01, 50), st.floats(1, 1e6))
def test_a_call_that_outlives_all_that_is_known_ends_at_any_time_alike(known, part, token_us):
    curves, row = curve(known)
    generated = part * (known.quantiles[-1] + 4 * excess(known))
    got = alive(curves, row, generated, token_us)

    shares = np.exp(-SLOT_AT_US / token_us / excess(known))
    np.testing.assert_allclose(got, np.where(shares < 1e-4, 0, shares), rtol=1e-6, atol=1.01e-4)


def test_answers_that_are_always_alike_end_when_they_always_do():
    curves, row = curve(always(100))
    got = alive(curves, row, 0, SLOT_US / 40)  # 40 tokens a slot

    assert got[:3].min() > 0.99
    assert got[3:].max() < 0.01
    assert alive(curves, row, 70, SLOT_US / 40)[:2].tolist() == pytest.approx([1, 0], abs=0.01)


def test_where_only_the_mean_is_guessed_answers_end_at_any_time_alike():
    assert sum(exponential_distribution(100).quantiles) / QUANTILES == pytest.approx(100, rel=0.02)
    curves, row = curve(None, completion=100)
    for generated in (0, 50, 150):  # whatever it had already, 100 tokens more leave a third
        got = alive(curves, row, generated, SLOT_US / 100)
        assert got[:2].tolist() == pytest.approx([1, 1 / math.e], abs=0.03)


def test_an_answer_that_is_expected_to_be_empty_is_no_trouble():
    for known in (always(0), None):
        curves, row = curve(known, completion=0)
        got = alive(curves, row, 0, 25_000.0)
        assert np.isfinite(got).all()
        assert got[0] == 1
        assert got[1] < 0.1
        overdue = alive(curves, row, 1000, 25_000.0)
        assert overdue[0] == 1
        assert overdue[1] < 1e-4


def test_a_limit_ends_an_answer_but_not_one_that_goes_on_all_the_same():
    curves, row = curve(always(10**6))
    tokens_a_slot = 40
    ends = alive(curves, row, 10, SLOT_US / tokens_a_slot, limit=100)
    assert ends[:3].min() > 0.9  # 10, 50 and 90 tokens
    assert not ends[3:].any()
    for overdue in (100, 5000):
        got = alive(curves, row, overdue, SLOT_US / tokens_a_slot, limit=100)
        assert got[0] == 1  # what it has is there until it ends
        assert not got[1:].any()


def test_slots_widen_by_a_third_at_most_and_reach_an_hour():
    assert SLOT_AT[:5] == (0, 1, 2, 3, 4)
    assert all(b - a <= max(2, 0.34 * a) for a, b in pairwise(SLOT_AT))
    assert SLOT_AT_US[-1] > 3_600e6


def test_until_its_prompt_is_computed_a_call_neither_grows_nor_ends():
    curves, row = curve(exponential_distribution(50.0))
    at_once = alive(curves, row, 0, SLOT_US / 40)
    later = alive(curves, row, 0, SLOT_US / 40, delay_us=2 * SLOT_US)
    assert later[:3].tolist() == [1, 1, 1]
    both = [at for at in SLOT_AT if at - 2 in SLOT_AT]
    assert len(both) > 5
    assert [later[SLOT_AT.index(at)] for at in both] == pytest.approx(
        [at_once[SLOT_AT.index(at - 2)] for at in both]
    )
    held = np.array([100.0])
    mean, variance, _ = curves.surviving(
        np.array([row]), held, np.zeros(1), np.array([INF]), np.array([9e3]), np.array([1e12])
    )
    assert (mean == 100).all()
    assert not variance.any()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(1, 5000),
            st.integers(0, 2000),
            st.sampled_from([50.0, 900.0, INF]),
            st.sampled_from([0, 0, SLOT_US / 3, 3.5 * SLOT_US]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.floats(1000, 1e5),
)
def test_calls_that_run_together_hold_the_sum_of_what_each_holds(calls, token_us):
    curves = Curves()
    rows = [
        row_of(curves, build.request("r", agent=f"a{n}"), known)
        for n, known in enumerate([exponential_distribution(100.0), always(700), None])
    ]
    sums = np.zeros((3, SLOTS))
    for kind, *each in calls:
        held, generated, limit, delay_us = (np.array([float(value)]) for value in each)
        one, speed = np.array([rows[kind]]), np.array([token_us])
        found = curves.surviving(one, held, generated, limit, speed, delay_us)
        sums += np.stack(found)[:, 0]

    kinds, *columns = (np.array(each) for each in zip(*calls, strict=True))
    held, generated, limits, delays_us = (column.astype(float) for column in columns)
    got = curves.together(np.array(rows)[kinds], held, generated, limits, token_us, delays_us)
    np.testing.assert_allclose(got[0], sums[0], rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(got[1], sums[1], rtol=1e-6, atol=1e-3)
    np.testing.assert_allclose(got[2], sums[2], rtol=1e-9, atol=1e-6)
    assert (got[1] >= 0).all()
    assert (got[2] >= got[0] - 1e-6).all()


def test_each_kind_has_a_row_and_a_row_is_by_what_is_known_now():
    curves = Curves()
    a, b = build.request("a", agent="a"), build.request("b", agent="b")
    row = row_of(curves, a, always(10))
    assert row_of(curves, a, always(10)) == row != row_of(curves, b, always(10))
    before = alive(curves, row, 0, SLOT_US / 20)[1]

    assert row_of(curves, a, always(1000)) == row
    assert before < 0.1 < 0.9 < alive(curves, row, 0, SLOT_US / 20)[1]


def test_calls_of_an_agent_of_which_nothing_is_known_are_told_apart_by_what_they_ask_for():
    curves = Curves()
    short, long = (build.request("r", agent="a", completion=n) for n in (10, 1000))
    rows = [row_of(curves, each, None) for each in (short, long)]
    assert rows[0] != rows[1]
    assert row_of(curves, long, None) == rows[1]
    assert row_of(curves, short, always(5)) == row_of(curves, long, always(5)) not in rows


def test_rows_in_use_are_kept_and_others_are_used_again(monkeypatch):
    monkeypatch.setattr(demand, "_MAX_ROWS", 20)
    curves = Curves()
    taken = {
        n: take(curves, build.request(f"r{n}", agent=f"a{n}"), always(10 * n)) for n in range(9)
    }
    for n in range(100, 400):
        row_of(curves, build.request("asked", agent=f"a{n}"), always(5))
    assert len(curves._rows) == 20
    assert len(set(taken.values())) == 9
    for n, row in taken.items():
        assert curves._rows[f"a{n}", None].number == row
    for n in range(50):  # more than are kept, all in use
        taken[1000 + n] = take(curves, build.request(f"r{1000 + n}", agent=f"b{n}"), always(5))
    assert len(set(taken.values())) == len(taken)

    for n in taken:
        curves.unlock_row(f"r{n}")
    assert not any(row.users for row in curves._rows.values())
    assert not curves._of_call


def test_a_row_that_was_given_back_is_drawn_anew_for_whom_it_is_used_next(monkeypatch):
    monkeypatch.setattr(demand, "_MAX_ROWS", 1)
    curves = Curves()
    row = take(curves, build.request("long", agent="a"), always(10_000))
    curves.unlock_row("long")
    assert take(curves, build.request("short", agent="b"), always(1)) == row
    assert alive(curves, row, 0, SLOT_US / 50)[1] < 0.1
