"""Until when a call's answer is awaited."""

import pytest

from kairos.core import InvalidRequest
from kairos.request import MAX_MS, deadline_of

NOW = 1_000_000_000


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"x-kairos-deadline": "7"}, 7),
        ({"x-kairos-deadline-ms": "250"}, NOW + 250_000),
        ({"x-kairos-deadline-ms": "1", "x-kairos-deadline": "1000000500"}, NOW + 500),
        ({"x-stainless-read-timeout": "600"}, NOW + 600_000_000),
        ({"x-stainless-read-timeout": "0.5", "x-kairos-deadline-ms": "900"}, NOW + 500_000),
        ({"x-stainless-read-timeout": "None"}, None),
        ({"x-stainless-read-timeout": "1e9"}, None),
    ],
)
def test_the_earliest_that_is_named_counts(headers, expected):
    said = {name.encode(): value.encode() for name, value in headers.items()}
    assert deadline_of(said, NOW, streams=False) == expected


def test_how_long_a_client_waits_for_bytes_is_no_deadline_of_a_stream():
    assert deadline_of({b"x-stainless-read-timeout": b"600"}, NOW, streams=True) is None


@pytest.mark.parametrize("value", [b"0", b"-1", b"1.5", b"", b"soon", str(MAX_MS + 1).encode()])
def test_milliseconds_that_are_none_are_refused(value):
    with pytest.raises(InvalidRequest, match="x-kairos-deadline-ms must be"):
        deadline_of({b"x-kairos-deadline-ms": value}, NOW, streams=True)
