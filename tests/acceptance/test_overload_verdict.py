"""Each thing that must hold of an overload is missed where it does not."""

import msgspec
import pytest

from kairos.core import SECOND
from tests.acceptance import overload_verdict
from tests.acceptance.overload_verdict import FULL, Seen
from tests.soak.client import made_up
from tests.soak.verdict import Sample


def outcome(end, name, seconds, detail="", retry_after=None):
    given = {"name": name, "seconds": seconds, "retry_after": retry_after}
    return made_up(end, detail, ended_at=5 * SECOND, **given)


def refused(count, seconds=0.002, retry_after="1", detail=FULL):
    return [
        outcome("error", f"{detail} {n}", seconds, detail, retry_after) for n in range(count)
    ]  # fmt: skip


def answered(count, seconds=1.0):
    return [outcome("answered", f"a{n}", seconds) for n in range(count)]


def samples(grows_mb_per_s):
    return [Sample(float(s), int(1e8 + 1e6 * grows_mb_per_s * s), 0, 10**5 * s) for s in range(120)]


SEEN = Seen(
    capacity_per_s=10.0,
    seconds=10.0,
    outcomes=[*refused(100), *answered(105)],
    waits_s={f"a{n}": 3.0 for n in range(105)},
    light_before=answered(20, 0.2),
    light_after=answered(20, 0.21),
    drained_s=1.0,
    memory_before_mb=100,
    memory_after_mb=110,
    samples=samples(0.0),
)


def test_a_run_in_which_all_of_it_holds_is_right():
    assert list(overload_verdict.judge(SEEN)) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"outcomes": [*refused(10), *answered(105)]}, "no overload"),
        ({"outcomes": [*refused(98), *refused(3, 0.05), *answered(105)]}, "after 50 ms (p99)"),
        ({"outcomes": [*refused(100, retry_after=None), *answered(105)]}, "Retry-After is None"),
        ({"outcomes": [*refused(100, retry_after="0"), *answered(105)]}, "Retry-After is 0"),
        ({"outcomes": [*refused(100, retry_after="60"), *answered(105)]}, "is 60, not 1 to 4"),
        (
            {"outcomes": [*SEEN.outcomes, outcome("gave up", "a0", 50.0)]},
            "accepted, and not answered: 1 gave up",
        ),
        (
            {"outcomes": [*SEEN.outcomes, *refused(1, detail="503 waited_too_long")]},
            "accepted, and not answered: 1 error 503 waited_too_long",
        ),
        ({"waits_s": SEEN.waits_s | {"a0": 20.5}}, "waited for 20.5 s, and may for 20 s"),
        ({"waits_s": {}}, "does not know the wait"),
        ({"outcomes": [*refused(100), *answered(98)]}, "89% of the capacity is served"),
        ({"light_after": answered(20, 0.23)}, "took 200 ms before, and takes 230 ms (p50)"),
        ({"light_after": [*answered(18, 0.2), *answered(2, 0.3)]}, "takes 300 ms (p95)"),
        ({"light_after": refused(1)}, "light load were not answered: 1 error 429"),
        ({"memory_after_mb": 173}, "73 MB more are resident"),
        ({"samples": samples(0.1)}, "resident memory grows by 360 MB/hour"),
    ],
)
def test_what_does_not_hold_is_told(changed, said):
    told = list(overload_verdict.judge(msgspec.structs.replace(SEEN, **changed)))
    assert any(said in each for each in told), told
