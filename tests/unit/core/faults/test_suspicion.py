"""How suspicious a silence is, by how long silences were before."""

from hypothesis import given
from hypothesis import strategies as st

from kairos.core.faults.suspicion import REMEMBERED, Silences

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


def test_what_was_long_ago_is_forgotten():
    made = after(100.0, *[1.0] * REMEMBERED)
    assert made.level(50.0) == 0.0
    for _ in range(REMEMBERED):
        made.add(1.0)
    assert made.level(50.0) > 5.0
