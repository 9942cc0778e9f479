"""How suspicious a silence is, by how long silences were before."""

from hypothesis import given
from hypothesis import strategies as st

from kairos.faults.suspicion import Silences

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
