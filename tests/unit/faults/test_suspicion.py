"""How suspicious a silence is, by how long silences were before."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kairos.faults.suspicion import FEW, REMEMBERED, SLOWER, Silences

silences = st.floats(min_value=1e-3, max_value=1e9)


def after(*before):
    made = Silences()
    for each in before:
        made.add(each)
    return made


def test_nothing_is_suspicious_before_anything_is_known():
    assert after().level(1e12) == 0.0


@given(st.lists(silences, min_size=1, max_size=50))
def test_what_was_before_is_not_suspicious(before):
    assert after(*before).level(max(before)) == 0.0


@given(st.lists(silences, max_size=50), silences, silences)
def test_the_longer_the_more_suspicious(before, one, other):
    made = after(*before)
    shorter, longer = sorted((one, other))
    assert made.level(shorter) <= made.level(longer)


@given(st.lists(silences, max_size=50), silences, silences)
def test_a_longer_silence_that_ended_well_makes_no_silence_more_suspicious(before, more, silence):
    longest = max(before, default=0.0)
    known, taught = after(*before), after(*before, longest + more)
    if before and silence <= longest + more:
        assert taught.level(silence) <= known.level(silence)


def test_the_same_silence_is_the_more_suspicious_the_more_others_were_short():
    levels = [after(*[1.0] * count).level(10.0) for count in (1, 10, 100, 1000)]
    assert levels == sorted(levels)
    assert levels[0] > 3.0


def test_one_of_which_little_is_known_is_judged_by_all_as_if_it_were_slower():
    known = after(*[1.0] * 100)
    one = Silences(known)
    assert one.level(10.0) == known.level(10.0 / SLOWER)
    for _ in range(FEW):
        one.add(5.0)
    assert one.level(5.0) == 0.0
    assert known.level(5.0) == 0.0, "it is one of all"


def test_what_was_long_ago_is_forgotten():
    made = after(100.0, *[1.0] * REMEMBERED)
    assert made.level(50.0) == 0.0
    for _ in range(REMEMBERED):
        made.add(1.0)
    assert made.level(50.0) > 5.0


def test_alarms_are_as_rare_as_the_level_says_where_the_tail_is_as_heavy_as_is_assumed():
    """Silences of a Pareto distribution with the index that is assumed: the worst that is."""
    dice, made = Random(1), Silences()
    count, alarms = 200_000, {2.0: 0, 3.0: 0, 4.0: 0}
    for _ in range(count):
        silence = dice.paretovariate(3.0)
        level = made.level(silence)
        for each in alarms:
            alarms[each] += level >= each
        made.add(silence)
    for level, number in alarms.items():
        assert number <= 2 * count / 10**level + 2, (level, number)
