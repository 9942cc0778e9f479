"""What is fuzzed: each takes any bytes, gives them to one parser, and raises where that breaks its
word. The only errors that a parser may raise are the documented ones, and those end here.
"""

from contextlib import suppress

from kairos.core import PARENTS_LIMIT, InvalidRequest
from kairos.gateway import Access
from kairos.gateway.auth.access import Caller
from kairos.proxy import SseReader, usage_of
from kairos.request import Aliases, deadline_of, identity_of, names_in, read_body
from kairos.request.identity.engine_reply import reply_of
from kairos.request.identity.identity import identifier_of
from kairos.settings import KeySettings
from tests.fuzz.cluster.messages import message
from tests.fuzz.parts import head_of, pairs_of
from tests.fuzz.request.bodies import body
from tests.fuzz.workflows.flows import flow

NOW = 1_700_000_000_000_000  # µs
_ACCESS, _CALLER = Access([KeySettings(sha256="0" * 64, tenant="acme")]), Caller("acme", "qa")
_FIELDS = {"workflow_id": "metadata.run.id", "app": "user", "agent": "metadata.agent"}


def headers(data: bytes) -> None:
    """A request as HTTP has it: path, headers, an empty line, body."""
    lines, content = head_of(data)
    path, _, lines = lines.partition(b"\n")
    said = {name.lower(): value for name, value in pairs_of(lines)}
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


TARGETS = {each.__name__: each for each in (headers, body, stream, message, flow)}


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
