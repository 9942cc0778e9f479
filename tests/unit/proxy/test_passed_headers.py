"""Which headers pass to engines, and back."""

import pytest

from kairos.core import SetupError
from kairos.proxy import asked
from kairos.proxy.asked import PassedHeaders

NEVER = [
    *("Set-Cookie", "Cookie", "Set-Cookie2", "Access-Control-Allow-Origin"),
    *("Access-Control-Expose-Headers", "X-Kairos-Reason", "X-Kairos-Workflow-Id", "X-Request-Id"),
    *("Transfer-Encoding", "Connection", "Keep-Alive", "Proxy-Authenticate", "Server", "Upgrade"),
    *("Content-Length", "Authorization", "X-Api-Key", "X-Vllm-Priority", "WWW-Authenticate"),
]


def names(headers):
    return [name for name, _ in headers]


@pytest.mark.parametrize("name", NEVER)
def test_what_belongs_to_the_engine_or_to_kairos_passes_in_neither_direction(name):
    raw = name.lower().encode()
    passed = PassedHeaders(["x-*"])
    assert passed.to_client([(raw, b"v"), (b"x-ratelimit-limit", b"9")]) == [
        (b"x-ratelimit-limit", b"9")
    ]
    assert names(passed.to_engine({raw: b"v", b"x-lab": b"1"})) == [b"x-lab"]
    with pytest.raises(SetupError, match="cannot be passed on"):
        PassedHeaders([name])


def test_what_an_engine_says_else_goes_back():
    said = [(b"content-type", b"application/json"), (b"retry-after", b"3"), (b"x-of-it", b"1")]
    assert PassedHeaders().to_client(said) == said


def test_what_the_connection_names_stays_there():
    said = [(b"connection", b"close, X-Hop"), (b"x-hop", b"1"), (b"x-of-it", b"1")]
    assert PassedHeaders().to_client(said) == [(b"x-of-it", b"1")]


# What a client says that its connection has, and what goes on of x-lab-a, x-lab-b and the rest.
NOMINATED = [
    (b"keep-alive", [b"content-type", b"accept", b"user-agent", b"x-lab-a", b"x-lab-b"]),
    (b"close", [b"content-type", b"accept", b"user-agent", b"x-lab-a", b"x-lab-b"]),
    (b"x-lab-a", [b"content-type", b"accept", b"user-agent", b"x-lab-b"]),
    (b"X-Lab-A, keep-alive", [b"content-type", b"accept", b"user-agent", b"x-lab-b"]),
    (b"close,x-lab-b ,\tX-LAB-A", [b"content-type", b"accept", b"user-agent"]),
    (b"user-agent", [b"content-type", b"accept", b"x-lab-a", b"x-lab-b"]),
    (b"accept, te", [b"content-type", b"user-agent", b"x-lab-a", b"x-lab-b"]),
    (b"content-type", [b"content-type", b"accept", b"user-agent", b"x-lab-a", b"x-lab-b"]),
    (b"x-lab-c, ,", [b"content-type", b"accept", b"user-agent", b"x-lab-a", b"x-lab-b"]),
]


@pytest.mark.parametrize(("connection", "expected"), NOMINATED)
def test_what_a_clients_connection_names_ends_at_kairos(connection, expected):
    values = (b"content-type", b"accept", b"user-agent", b"x-lab-a", b"x-lab-b", b"te", b"trailer")
    asked = dict.fromkeys(values, b"v") | {b"connection": connection, b"keep-alive": b"9"}
    assert names(PassedHeaders(["x-lab-*"]).to_engine(asked)) == expected


def test_to_engines_go_the_usual_ones_and_those_that_an_operator_names():
    asked = {
        b"accept": b"*/*",
        b"anthropic-version": b"2023-06-01",
        b"x-lab-run": b"7",
        b"x-o": b"1",
    }
    assert names(PassedHeaders().to_engine(asked)) == [b"accept", b"anthropic-version"]
    named = PassedHeaders(["X-Lab-*", "accept"])
    assert names(named.to_engine(asked)) == [b"accept", b"anthropic-version", b"x-lab-run"]


@pytest.mark.parametrize("wrong", ["", "*", "x y", "x-\u00e4", "x:", "a*b"])
def test_what_is_no_name_is_refused_at_the_start(wrong):
    with pytest.raises(SetupError):
        PassedHeaders([wrong])


def test_names_without_end_take_bounded_room():
    passed = PassedHeaders()
    for number in range(10_000):
        passed.to_client([(b"x-%d" % number, b"")])
    assert asked._is_never.cache_info().currsize <= 256
