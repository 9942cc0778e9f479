"""What is fuzzed: each takes any bytes, gives them to one parser, and raises where that breaks its
word. The only errors that a parser may raise are the documented ones, and those end here.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial

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
from kairos.core import PARENTS_LIMIT, InvalidFile, InvalidRequest, Message
from kairos.gateway import Access
from kairos.gateway.auth.access import Caller
from kairos.proxy import SseReader, usage_of
from kairos.request import Aliases, Body, deadline_of, identity_of, names_in, read_body
from kairos.request.identity.conversation import conversation, prompt_of
from kairos.request.identity.engine_reply import reply_of
from kairos.request.identity.identity import identifier_of
from kairos.request.native import READING, Reading
from kairos.request.shape import check_input, check_messages, check_prompt, check_tools
from kairos.settings import KeySettings
from kairos.workflows import Declaration, compile_plan, predict_flow
from kairos.workflows.declare.yaml_file import read_json, read_yaml

NOW = 1_700_000_000_000_000  # µs
_REFUSED = (InvalidRequest, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # of a bus
_ACCESS, _CALLER = Access([KeySettings(sha256="0" * 64, tenant="acme")]), Caller("acme", "qa")
_FIELDS = {"workflow_id": "metadata.run.id", "app": "user", "agent": "metadata.agent"}


def headers(data: bytes) -> None:
    """A request as HTTP has it: path, headers, an empty line, body."""
    lines, content = _head(data)
    path, _, lines = lines.partition(b"\n")
    said = {name.lower(): value for name, value in _pairs(lines)}
    names, _ = names_in(path.decode("latin-1"), path.decode("latin-1").encode())
    with suppress(InvalidRequest):
        _ACCESS.caller(said.get(b"authorization"))
    with suppress(InvalidRequest):
        told = read_body(content, chat=False, streams_usage=False).told if content else {}
        aliases = Aliases(_FIELDS)
        # Said twice, as what an earlier session was may change what a later one is.
        for _ in range(2):
            identity = identity_of(said, told, names, _CALLER, aliases)
        known = {field: getattr(identity, field) for field in identity.sources}
        for name in (*known.values(), *identity.parent_ids):
            assert identifier_of(name) == name
        assert known.keys() == {
            field
            for field in ("workflow_id", "app", "agent", "upstream")
            if getattr(identity, field) is not None
        }
        assert len(identity.parent_ids) <= PARENTS_LIMIT
        assert 1 <= identity.attempt < 1_000
        assert 0 <= (identity.started_at or 0) < 10**18
        for streams in (True, False):
            assert 0 <= (deadline_of(said, NOW, streams=streams) or 0) < 2 * 10**18


def body(data: bytes) -> None:
    """A request's body, on each kind of route."""
    for chat, streams_usage in ((True, True), (False, True), (False, False)):
        with suppress(InvalidRequest):
            read = read_body(data, chat=chat, streams_usage=streams_usage)
            _check_engine_can_read(data)
            assert read.prompt_tokens >= 1
            assert read.completion_tokens >= 1
            assert read.usage_added or read.content is data
            again = read_body(read.content, chat=chat, streams_usage=streams_usage)
            assert not again.usage_added, "it asks for usage now"
            assert _routing(again) == _routing(read)
    talk = conversation(prompt_of(data))
    if talk is not None:
        "".join(map(talk.text_at, talk.parts().values())).encode("utf-8", "replace")
        assert all(each.at < max(1, len(talk.raw)) for each in talk.tail())


def stream(data: bytes) -> None:
    """A stream of events behind a line that says in what pieces it comes: each byte is a size."""
    sizes, _, whole = data.partition(b"\n")
    pieces = _pieces(whole, sizes)
    untouched, cut, uncut = SseReader(drop_usage_chunk=False), _dropping(), _dropping()
    assert b"".join([*map(untouched.feed, pieces), untouched.rest()]) == whole
    forwarded = b"".join([*map(cut.feed, pieces), cut.rest()])
    assert forwarded == uncut.feed(whole) + uncut.rest(), "what is forwarded depends on the pieces"
    for reader in (untouched, cut):
        assert _said(reader) == _said(uncut), "what is read depends on the pieces"
    _check_dropped(whole, forwarded)
    assert cut.kept == whole
    for streamed in (True, False):
        reply = reply_of(whole, streamed=streamed)
        assert reply is None or all(isinstance(each, str) for each in reply.ids)
    usage_of(whole)


def message(data: bytes) -> None:
    """A message of the bus: headers, an empty line, value. Its key is the header of that name."""
    lines, value = _head(data)
    said = {name.decode(errors="replace"): _text(text) for name, text in _pairs(lines)}
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


def flow(data: bytes) -> None:
    """A declared workflow, as YAML and as JSON: what is read can be planned, and what a plan takes
    foretold."""
    text = data.decode("utf-8", "replace")
    for read in (read_yaml, read_json):
        _plan_of(read, text)


def _plan_of(read: Callable[[str, str], Declaration], text: str) -> None:
    with suppress(InvalidFile):
        plan = compile_plan(read(text, "flow"))
        assert compile_plan(plan.declaration).declaration == plan.declaration
        row = {name: ["x", {"text": "y"}] for name in plan.columns}
        assert predict_flow(plan, [row, row]).rows == 2


TARGETS = {each.__name__: each for each in (headers, body, stream, message, flow)}


def _routing(read: Body) -> tuple[object, ...]:
    return read.model, read.stream, read.prefix, read.prefix_units, read.told


def _check_engine_can_read(content: bytes) -> None:
    """Any engine: it is JSON, in text that has UTF-8."""
    read = json.loads(content.decode(), parse_int=str)
    assert isinstance(read, dict)
    json.dumps(read, ensure_ascii=False).encode()
    prompt = prompt_of(content)
    for check, part in (
        (check_messages, prompt.messages),
        (check_tools, prompt.tools),
        (check_input, prompt.input),
        (partial(check_prompt, choices=1), prompt.prompt),
    ):
        if part:
            sure, judged = (_refusal(check, bytes(part), c) for c in (READING, None))
            assert sure == judged, "C is sure of what msgspec is not"


def _refusal(check: Callable[..., None], part: bytes, compiled: Reading | None) -> str | None:
    try:
        check(part, compiled=compiled)
    except InvalidRequest as refused:
        return str(refused)
    return None


def _told(value: bytes) -> None:
    """A fact, in the order in which the active balancer reads it."""
    with suppress(*_REFUSED):
        told = read_told(value)
        if (request := getattr(told.event, "request", None)) is not None:
            check_request(request)
        assert msgspec.json.decode(msgspec.json.encode(told), type=Told) == told


def _head(data: bytes) -> tuple[bytes, bytes]:
    head, _, rest = data.partition(b"\n\n")
    return head, rest


def _pairs(lines: bytes) -> list[tuple[bytes, bytes]]:
    parts = (line.partition(b":") for line in lines.split(b"\n"))
    return [(name.strip(), value.strip()) for name, colon, value in parts if colon]


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _pieces(whole: bytes, sizes: bytes) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(whole[at : at + size])
        at += size
    return [*pieces, whole[at:]]


def _dropping() -> SseReader:
    return SseReader(drop_usage_chunk=True, keep_bytes=1 << 20)


def _said(reader: SseReader) -> tuple[object, ...]:
    return reader.usage, reader.error, reader.done, reader.completion_tokens


def _check_dropped(whole: bytes, forwarded: bytes) -> None:
    """Whole events are missing, in which usage is told, and nothing else is."""
    at = 0
    for event in _events(whole):
        if forwarded.startswith(event, at):
            at += len(event)
        else:
            assert b'"usage"' in event
            assert b'"choices"' in event or b"\\u" in event
    assert at == len(forwarded)


def _events(whole: bytes) -> list[bytes]:
    events, start, at = [], 0, 0
    while at < len(whole):
        end = next((e for e in _ENDS if whole.startswith(e, at)), None)
        at += len(end) if end else 1
        if end:
            events.append(whole[start:at])
            start = at
    return [*events, whole[start:]]


_ENDS = (b"\r\n\r\n", b"\r\n\n", b"\n\r\n", b"\n\n")
