"""The columns of calls in flight, beside a dict of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core.dispatcher.in_flight import InFlightTable

INF = math.inf


def added(flight, name, **fields):
    usual = {
        "curve": 0,
        "prompt": 10,
        "begun_at": 0,
        "lasts_us": 1e6,
        "first_at": 0,
        "grows_from": 0,
    }
    flight.add(name, **{**usual, "limit": INF, **fields})


def test_an_answer_grows_from_when_its_prompt_is_computed():
    flight = InFlightTable()
    added(flight, "r", begun_at=100, grows_from=150)

    assert [flight.generated(at, 10.0)[0] for at in (0, 100, 150, 160, 200)] == [0, 0, 0, 1, 5]
    assert [flight.ages_us(at)[0] for at in (50, 100, 175)] == [0, 0, 75]


def test_it_is_likely_to_grow_from_when_its_first_token_is_expected_or_told():
    flight = InFlightTable()
    added(flight, "r", begun_at=100, first_at=150, grows_from=250)
    assert [flight.delays_us(at)[0] for at in (100, 140, 150, 200)] == [50, 10, 0, 0]
    flight.record_length("r", 1, 120)
    assert flight.delays_us(120)[0] == 0


def test_what_was_told_is_where_it_grows_on_from():
    flight = InFlightTable()
    added(flight, "r")
    flight.record_length("r", 40, 1000)

    assert [flight.generated(at, 10.0)[0] for at in (900, 1000, 1025)] == [40, 40, 42.5]


def test_no_answer_is_taken_for_longer_than_its_limit_unless_it_is():
    flight = InFlightTable()
    added(flight, "r", limit=50)
    assert flight.generated(10**9, 10.0)[0] == 50
    flight.record_length("r", 70, 1000)
    assert flight.generated(2000, 10.0)[0] == 70


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "add", "told", "remove"]), st.integers(0, 99)),
        max_size=120,
    )
)
def test_rows_stay_with_their_calls_whichever_leaves(steps):
    flight, calls = InFlightTable(), {}
    for n, (what, number) in enumerate(steps):
        name = sorted(calls)[number % len(calls)] if calls else None
        if what == "add":
            calls[f"r{n}"] = call = {"curve": n, "prompt": number, "lasts_us": n + 0.5}
            call |= {"begun_at": n, "grows_from": n + 1, "limit": 50 + number}
            added(flight, f"r{n}", **call)
            call |= {"told": 0, "since": n + 1}
        elif name and what == "told":
            flight.record_length(name, number, n)
            calls[name] |= {"told": number, "since": n}
        elif name:
            flight.remove(name, 0)
            del calls[name]

    at = 200
    assert len(flight) == len(calls)
    assert flight.prompt_tokens == flight.prompts.sum()
    columns = (flight.curves, flight.prompts, flight.lasts_us, flight.limits, flight.ages_us(at))
    rows = sorted(zip(*(column.tolist() for column in columns), strict=True))
    assert rows == sorted(
        (c["curve"], c["prompt"], c["lasts_us"], c["limit"], at - c["begun_at"])
        for c in calls.values()
    )
    grown = [
        max(c["told"], min(c["told"] + (at - c["since"]) / 4, c["limit"])) for c in calls.values()
    ]
    assert sorted(flight.generated(at, 4.0).tolist()) == pytest.approx(sorted(grown))


def test_who_takes_the_place_of_one_that_ended_keeps_all_that_is_known_of_it():
    flight = InFlightTable()
    added(flight, "ends")
    known = {"prompt": 7, "begun_at": 3, "lasts_us": 9.0, "limit": 40.0, "first_at": 90}
    added(flight, "stays", **known, grows_from=95)
    before = [flight.prompts[1], flight.lasts_us[1], flight.limits[1], flight.delays_us(10)[1]]
    flight.remove("ends", 0)
    after = [flight.prompts[0], flight.lasts_us[0], flight.limits[0], flight.delays_us(10)[0]]
    assert after == before == [7, 9, 40, 80]
