"""Choice of the forwarder for an engine's answer, by its status and content type."""

from collections.abc import Callable

from kairos.core import Event, UpstreamFailed
from kairos.proxy.engine_answer import EngineAnswer
from kairos.proxy.passed_headers import PassedHeaders
from kairos.proxy.response_forwarder import (
    BETTER_ELSEWHERE,
    ErrorAnswer,
    JsonAnswer,
    PassedAnswer,
    ResponseForwarder,
)
from kairos.proxy.sse import SseReader
from kairos.proxy.stream_forwarder import StreamAnswer, UnreadStreamAnswer
from kairos.proxy.told import Owner
from kairos.request import MAX_ANSWER_BYTES, Body, ClientResponse


def forwarder(
    instance_id: str,
    answer: EngineAnswer,
    response: ClientResponse,
    body: Body,
    feed: Callable[[Event], None],
    owner: Owner,
    streams: dict[str, SseReader],
    passed: PassedHeaders,
    *,
    reads_stream: bool,
    tries_again: bool,
) -> ResponseForwarder:
    """Return the forwarder of an answer whose status and headers have arrived.

    `streams` registers a stream while it runs. `reads_stream`: the route's end and errors are
    known. `tries_again`: an engine's error is raised as long as the client has received nothing.

    Raises:
        UpstreamFailed: The answer is a redirect.
    """
    status = answer.status
    if 300 <= status < 400:
        # Neither we nor the client, who would go around the queue, should go there.
        raise UpstreamFailed(f"instance {instance_id} answered {status}, a redirect")
    parts = instance_id, answer, response, body, feed, owner, passed
    if status in BETTER_ELSEWHERE and tries_again:
        return ErrorAnswer(*parts)
    kind = answer.content_type
    if kind == b"application/json":
        return JsonAnswer(*parts)
    if kind != b"text/event-stream":
        return PassedAnswer(*parts)
    response.streams = True
    if not reads_stream:
        return UnreadStreamAnswer(*parts)
    stream = StreamAnswer(*parts)
    keep_bytes = MAX_ANSWER_BYTES if owner.wants_answer else 0
    stream.reader = SseReader(drop_usage_chunk=body.usage_added, keep_bytes=keep_bytes)
    stream.tries_again = tries_again
    streams[response.request_id] = stream.reader
    return stream
