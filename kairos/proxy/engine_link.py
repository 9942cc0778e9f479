"""A connection to an engine: one call at a time, and its answer."""

import asyncio
import re
import select
from typing import TYPE_CHECKING, cast

import httptools

from kairos.core import RAW_HEADERS, Header
from kairos.proxy.engine_answer import (
    MAX_HEADER_BYTES,
    ConnectionBroke,
    ConnectionDropped,
    EngineAnswer,
    NothingCame,
)
from kairos.settings import TlsFiles

if TYPE_CHECKING:
    from kairos.proxy.connections import Connections

Origin = tuple[TlsFiles | None, str, int]  # with what of TLS, if any; host, port

_JOINED_BYTES = 1 << 16  # a larger request body is not copied behind its headers
_SENT_BYTES = 1 << 12  # a smaller body is sent with its headers, at once
# Bytes without a complete element: a head with many short headers can be four times as large as
# its names and values, which `MAX_HEADER_BYTES` bounds.
_MAX_ENDLESS_BYTES = 4 * MAX_HEADER_BYTES
_ID_LINE = b"\r\n" + Header.REQUEST_ID.encode() + b": "
_ID_BYTES = 512  # of an answer, in which vLLM says which request it is of
_SAID_ID = re.compile(rb'"id"\s*:\s*"([^"\\]+)"')
# Bytes parsed in one turn of the loop: with many tiny events that takes 6 ms. The rest waits for
# another turn, and reading from the engine is paused.
TURN_BYTES = 1 << 12


class EngineLink(asyncio.Protocol):
    """Protocol of one connection: one call at a time; also the callbacks of the HTTP parser.

    What the parser finds in a piece of data is passed on after it has finished the piece, so the
    receiver may do anything with the answer.
    """

    _transport: asyncio.Transport  # once it is made

    def __init__(self, pool: "Connections", origin: Origin) -> None:
        self._pool, self._origin = pool, origin
        self._pieces: list[bytes] = []  # of a body, not handed on yet
        self.on_body = self._pieces.append  # for the parser: a frame of Python less for each chunk
        self._parser = httptools.HttpResponseParser(self)
        self._answer: EngineAnswer | None = None
        self._has_headers = self._is_new = False  # and it has not been told of them yet
        self._is_framed = False  # the answer says where it ends
        self._endless_bytes = 0  # since the parser found anything
        self._unread = b""  # of what has come
        self._waits = False  # for a turn to read it
        self._can_stay = True
        self.is_paused = False
        self._is_used = False  # by an earlier call
        self._own_id = self._earlier_id = b""  # of this call, and of that one, as answers say them
        self._has_said = False  # the answer, whose it is
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = self.due_at = 0.0
        self.made_at, self.idle_since = pool.now(), 0.0

    @property
    def is_open(self) -> bool:
        return self._can_stay and not self._transport.is_closing()

    @property
    def is_quiet(self) -> bool:
        """Whether the connection is open and has no data, not even in the socket's buffer."""
        sock = self._transport.get_extra_info("socket")
        if not self.is_open or sock is None:
            return False
        readable = select.poll()
        readable.register(sock.fileno(), select.POLLIN)
        return not readable.poll(0)

    def send(self, answer: EngineAnswer) -> None:
        self._answer, answer.source = answer, self
        self._has_headers = self._is_framed = self._has_said = False
        self._endless_bytes = 0
        self._expect(answer.limit.whole_s or answer.limit.stall_s)
        if len(answer.body) <= _JOINED_BYTES:
            self._transport.write(answer.head + answer.body)
        else:
            self._transport.writelines((answer.head, answer.body))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._unread:
            self._unread += data
        elif len(data) <= TURN_BYTES:
            self._read(data)
        else:
            self._unread = data
            self._transport.pause_reading()
            self._read_on()

    def _read_on(self) -> None:
        """Read buffered data piece by piece, over as many turns of the event loop as needed."""
        if self.is_paused or self._waits:  # then it goes on with `resume`, or in its turn
            return
        if self._unread:
            answer = self._answer
            caller = self if answer is None or answer.caller is None else answer.caller
            self._waits = True
            self._pool.pace.begin_step(caller, self._take_turn)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _take_turn(self) -> None:
        self._waits = False
        if self._unread and not self.is_paused:
            self._read_piece()
            self._read_on()

    def _read_rest(self) -> None:
        """Read all buffered data: no more will arrive."""
        while self._unread:
            self._read_piece()

    def _read_piece(self) -> None:
        piece, self._unread = self._unread[:TURN_BYTES], self._unread[TURN_BYTES:]
        self._read(piece)

    def _read(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:  # nobody asked for anything: what says more than it should is not used
            self.abort()
            return
        answer.has_begun = True
        error: Exception | None = None
        try:
            self._parser.feed_data(data)
            if not self._pieces:
                self._count_endless(answer, len(data))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ConnectionBroke) as said:
            error = _cause(said)
        # What the parser found. Whoever takes it may have had enough after each.
        if self._is_new:
            self._begin(answer)
        if self._pieces and not self._hand_on(answer):
            return
        if answer.has_progressed and answer.limit.whole_s is None:
            answer.has_progressed = False
            self.due_at = self._pool.now() + answer.limit.stall_s
        if error is not None:
            self._break(error)
        if answer.is_whole:
            self._end(answer)

    def _hand_on(self, answer: EngineAnswer) -> bool:
        """Pass on a part of the body. Return whether it belongs to this call."""
        pieces, self._endless_bytes = self._pieces, 0
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if not self._has_said and self._is_of_earlier(answer, data):
            self.abort()
            answer.fail(ConnectionBroke("the engine answers an earlier call once more"))
            return False
        if answer.taker is not None and not answer.is_bodiless:
            answer.taker.came(data)
        return True

    def _is_of_earlier(self, answer: EngineAnswer, data: bytes) -> bool:
        """Return whether the answer names the previous call, and not this one.

        Only for an engine that named the previous call in its answer: ids of other engines mean
        something else.
        """
        self._has_said, self._own_id = True, b""
        found = _SAID_ID.search(data, 0, _ID_BYTES)
        said = b"" if found is None else found[1]
        own, earlier = _id_of(answer), self._earlier_id
        if _is_said(own, said, answer):
            self._own_id = own
            return False
        return bool(earlier) and _is_said(earlier, said, answer)

    def _begin(self, answer: EngineAnswer) -> None:
        self._is_new = False
        if answer.taker is not None:
            answer.taker.begun(answer)

    def _count_endless(self, answer: EngineAnswer, size_bytes: int) -> None:
        """Count bytes without a complete element, which the parser copies with each read.

        Raises:
            ConnectionBroke: The headers are too large.
        """
        has_found = self._is_new or answer.is_whole
        self._endless_bytes = 0 if has_found else self._endless_bytes + size_bytes
        if self._endless_bytes > _MAX_ENDLESS_BYTES:
            raise ConnectionBroke("the answer's headers are too large")

    def eof_received(self) -> None:
        self._read_rest()
        answer = self._answer
        if answer is not None and self._has_headers and not self._is_framed:
            self._end(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._read_rest()
        self._can_stay = False
        self._pool.lost(self, self._origin)
        del self._parser  # which names this connection
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        answer, self._answer = self._answer, None
        if answer is None:
            return
        is_first = not answer.was_dropped and not answer.has_begun
        if self._is_used and answer.is_repeatable and is_first and answer.taker:
            answer.was_dropped = True
            self._pool.send_again(answer, self._origin)
            return
        answer.fail(ConnectionDropped(str(error) if error else "closed"))

    def _break(self, error: Exception) -> None:
        answer = self._answer
        self.abort()
        if answer is not None and not answer.is_whole:
            broke = error if isinstance(error, ConnectionBroke) else ConnectionBroke(str(error))
            answer.fail(broke)

    def _end(self, answer: EngineAnswer) -> None:
        """Finish the answer, and keep the connection for the next call if possible."""
        if self._answer is answer:
            self._answer, self._is_used = None, True
            self._earlier_id = self._own_id
            if self.is_open and not self._unread and not self._is_unsent(answer):
                self._resume()
                self._pool.keep(self, self._origin)
            else:
                self.abort()
        answer.end()

    def _is_unsent(self, answer: EngineAnswer) -> bool:
        """Return whether a part of the request is still unsent.

        An engine that answers before it has the whole request may take the rest for another one.
        """
        is_large = len(answer.body) > _SENT_BYTES
        return is_large and self._transport.get_write_buffer_size() > 0

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.is_whole:
            raise ConnectionBroke("the engine answers what nobody asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        answer = self._answer
        assert answer is not None
        answer.header_bytes += len(name) + len(value)
        if answer.header_bytes > MAX_HEADER_BYTES:
            raise ConnectionBroke("the answer's headers are too large")
        if self._has_headers:  # what follows a body has no place in what we send on
            return
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._is_framed = True
        answer.headers.append((name, value))

    def on_headers_complete(self) -> None:
        answer = self._answer
        assert answer is not None
        status = self._parser.get_status_code()
        if status < 200:
            if status == 101:
                raise ConnectionBroke("the engine wants to speak another protocol")
            answer.headers.clear()
            return
        self._is_framed |= status in (204, 304)
        self._can_stay = self._is_framed and self._parser.should_keep_alive()
        answer.status = status
        self._has_headers = self._is_new = True
        if answer.is_bodiless:  # the parser waits for the body, so it is of no use any more
            answer.is_whole, self._can_stay = True, False

    def on_message_complete(self) -> None:
        if self._has_headers and self._answer is not None:
            self._answer.is_whole = True

    def pause(self) -> None:
        if not self.is_paused:
            self.is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        self._resume()
        answer = self._answer
        if answer is not None and answer.limit.whole_s is None:
            self._expect(answer.limit.stall_s)
        elif self._watch is None:
            self._set_watch()

    def _resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._read_on()

    def _expect(self, within_s: float) -> None:
        """Set the time limit for progress. One timer serves all answers of a connection."""
        self.due_at = self._pool.now() + within_s
        if self._watch is not None:
            if self._watch_at <= self.due_at:
                return
            self._watch.cancel()
        self._set_watch()

    def _set_watch(self) -> None:
        self._watch_at = self.due_at
        self._watch = self._pool.loop.call_at(self.due_at, self._look)

    def _look(self) -> None:
        self._watch = None
        answer = self._answer
        if answer is None or self.is_paused:
            return
        if self.due_at > self._pool.now():
            self._set_watch()
            return
        self.abort()
        answer.fail(NothingCame(answer.limit))

    def abort(self) -> None:
        """Abort the connection, and ignore further data."""
        self._can_stay, self._answer = False, None
        self._unread = b""
        self._transport.abort()


def _id_of(answer: EngineAnswer) -> bytes:
    """Return the id with which a call was sent."""
    return answer.head.partition(_ID_LINE)[2].partition(b"\r\n")[0]


def _is_said(request_id: bytes, said: bytes, answer: EngineAnswer) -> bool:
    """Return whether an answer names this call: in a header, or in its id as vLLM does."""
    is_named = said == request_id or said.endswith((b"-" + request_id, b"_" + request_id))
    return is_named or (RAW_HEADERS[Header.REQUEST_ID], request_id) in answer.headers


def _cause(error: Exception) -> Exception:
    """Return the exception from a callback of the parser, if one stopped it."""
    cause = error.__context__
    if isinstance(error, httptools.HttpParserCallbackError) and isinstance(cause, Exception):
        return cause
    return error
