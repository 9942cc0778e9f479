"""Messages of the bus, fuzzed."""

from contextlib import suppress

import msgspec

from kairos.cluster import (
    Alive,
    ReceivedMessage,
    Told,
    forward_message,
    read_call,
    read_envelope,
    read_told,
    read_value,
    write_message,
)
from kairos.cluster.pool.messages import Orders, check_request
from kairos.core import InvalidRequest, Message
from tests.fuzz.parts import head_of, pairs_of

NOW = 1_700_000_000_000_000  # µs
_REFUSED = (InvalidRequest, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # of a bus


def message(data: bytes) -> None:
    """A message of the bus: headers, an empty line, value. Its key is the header of that name."""
    lines, value = head_of(data)
    said = {name.decode(errors="replace"): _text(text) for name, text in pairs_of(lines)}
    key = said.pop("key", said.get("kairos-msg-id", ""))
    sent = Message(key=key, value=value, headers=said)
    with suppress(InvalidRequest):
        envelope, read = read_envelope(sent), read_value(sent)
        onward = forward_message(sent, envelope, agent="next", value=read, parent=None)
        assert read_value(onward) == read
        assert read_envelope(onward).workflow_id == envelope.workflow_id
        again = write_message(envelope, read)
        assert read_envelope(again) == envelope
    with suppress(InvalidRequest):
        call = read_call(ReceivedMessage("t", 0, 0, NOW, key, value, said), NOW)
        check_request(call.request)
    _told(value)
    for kind in (Alive, Orders):
        with suppress(*_REFUSED):
            msgspec.json.decode(value, type=kind)


def _told(value: bytes) -> None:
    """A fact, in the order in which the active balancer reads it."""
    with suppress(*_REFUSED):
        told = read_told(value)
        if (request := getattr(told.event, "request", None)) is not None:
            check_request(request)
        assert msgspec.json.decode(msgspec.json.encode(told), type=Told) == told


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
