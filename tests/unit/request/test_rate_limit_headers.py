"""What is left of a quota, as headers."""

import pytest

from kairos.core import SECOND, RateLimit, RateLimits
from kairos.request.client_response import with_limits

MS = SECOND // 1_000


def reset(us):
    [*_, (name, value)] = with_limits([], RateLimits(requests=RateLimit(1, 1, us)))
    assert name == b"x-ratelimit-reset-requests"
    return value.decode()


@pytest.mark.parametrize(
    ("us", "said"),
    [
        (0, "0s"),
        (1, "1ms"),
        (16_001, "17ms"),
        (999_001, "1s"),
        (7_660 * MS, "7.66s"),
        (59_999_001, "1m0s"),
        (360 * SECOND, "6m0s"),
        (86_340 * SECOND, "23h59m0s"),
        (86_399_999 * MS, "23h59m59.999s"),
    ],
)
def test_when_all_of_it_is_there_again_is_said_as_openai_does(us, said):
    assert reset(us) == said


def test_what_is_limited_is_said_in_place_of_what_an_engine_says_of_its_own():
    engines = [(b"content-type", b"application/json"), (b"x-ratelimit-limit-requests", b"9")]
    limits = RateLimits(tokens=RateLimit(600, 42, SECOND))
    assert with_limits(engines, limits) == [
        (b"content-type", b"application/json"),
        (b"x-ratelimit-limit-tokens", b"600"),
        (b"x-ratelimit-remaining-tokens", b"42"),
        (b"x-ratelimit-reset-tokens", b"1s"),
    ]
