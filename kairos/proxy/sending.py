"""Sending of a call's request to an engine."""

from kairos.core import Dispatch
from kairos.proxy.asked import Asked, request_head
from kairos.proxy.engine_answer import AnswerTaker, EngineAnswer
from kairos.proxy.engine_client import EngineClient, InstanceNotKnown


def send(
    client: EngineClient,
    dispatch: Dispatch,
    asked: Asked,
    body: bytes,
    taker: AnswerTaker,
    *,
    streams: bool,
    to: str | None = None,
    patience_s: float | None = None,
) -> EngineAnswer:
    """Send a call to the instance that it is dispatched to, or to another one, `to`.

    `patience_s` is its client's timeout.

    Raises:
        InstanceNotKnown: This process does not know the instance that another one chose.
    """
    instance_id = to or dispatch.instance_id
    upstream = client.upstreams.get(instance_id)
    if upstream is None:
        raise InstanceNotKnown(instance_id)
    asked.sent(dispatch)
    beginning = upstream.head(asked.method, asked.path, asked.passed_query)
    place = upstream.priority_line(dispatch.priority)
    request_id = dispatch.request_id.encode()
    head = request_head(beginning, asked, request_id, place, len(body), client.passed_headers)
    return client.send(
        instance_id,
        head,
        body,
        taker,
        streams=streams,
        method=asked.method,
        is_repeatable=asked.rules.is_retried,
        patience_s=patience_s,
    )
