"""What a stream says of an error: its status, and whether another attempt makes sense."""

import msgspec
import pytest

from kairos.core import InvalidRequest, QueueFull, Unavailable, UpstreamFailed
from kairos.proxy import read_stream, refusal_error
from kairos.proxy.llm.http_llm import ErrorTold
from kairos.request import error_body


async def broken_off(error):
    async def pieces():
        yield b"data: %b\n\n" % msgspec.json.encode({"error": error})

    with pytest.raises(Exception) as raised:
        await read_stream(pieces(), lambda _: None, 1_000_000)
    return raised.value


@pytest.mark.parametrize(
    ("error", "kind", "status", "code"),
    [
        ({"message": "why", "code": 400}, InvalidRequest, 400, "invalid_request"),
        ({"message": "why", "code": 503}, Unavailable, 503, "unavailable"),
        ({"message": "why", "code": 200}, UpstreamFailed, 502, "upstream_failed"),
        ({"message": "why"}, UpstreamFailed, 502, "upstream_failed"),
        ({**error_body(QueueFull(9))["error"], "message": "why"}, Unavailable, 429, "queue_full"),
        (error_body(InvalidRequest("why"))["error"], InvalidRequest, 400, "invalid_request"),
        ({"message": "why", "code": "budget_calls"}, InvalidRequest, 403, "budget_calls"),
    ],
)
async def test_an_error_in_a_stream_has_the_status_that_it_stands_for(error, kind, status, code):
    failure = await broken_off(error)
    assert (type(failure), failure.status, failure.code) == (kind, status, code)
    assert str(failure) == "the answer broke off: why"


async def test_an_error_of_another_form_is_told_as_it_is():
    failure = await broken_off(["out of memory"])
    assert str(failure) == 'the answer broke off: {"error":["out of memory"]}'
    assert failure.status == 502


def test_a_message_is_cut_and_an_empty_one_is_the_status():
    assert len(str(refusal_error(400, ErrorTold("x" * 9_000)))) == 500
    assert str(refusal_error(500, ErrorTold(""))) == "status 500"
