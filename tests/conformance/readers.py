"""Readers of the same bytes: h11 and llhttp. Kairos's own are in `gateway/` and `proxy/`."""

import asyncio

import h11
import httptools

REFUSED = "refused"


class Wire(asyncio.Transport):
    """A transport in memory."""

    def __init__(self):
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written, self.closed = bytearray(), False
        self.unsent_bytes = 0

    def write(self, data):
        self.written += data

    def writelines(self, parts):
        self.written += b"".join(parts)

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return self.unsent_bytes

    def close(self):
        self.closed = True

    abort = close

    def pause_reading(self):
        """Bytes that came are given nevertheless."""

    resume_reading = pause_reading


def h11_server(case):
    read, connection = [], h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 16)
    try:
        for piece in case.pieces:
            connection.receive_data(piece)
            while _h11_step(connection, read):
                pass
        if case.ends:
            connection.receive_data(b"")
            while _h11_step(connection, read):
                pass
    except h11.RemoteProtocolError:
        return _found(case, read), REFUSED
    return _found(case, read), ""


def _h11_step(connection, read):
    event = connection.next_event()
    if isinstance(event, h11.Request):
        read.append([event.method, event.target, b"", False])
    elif isinstance(event, h11.Data):
        read[-1][2] += bytes(event.data)
    elif isinstance(event, h11.EndOfMessage):
        read[-1][3] = True
        connection.send(h11.Response(status_code=404, headers=[("content-length", "0")]))
        connection.send(h11.EndOfMessage())
        if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            return False
        connection.start_next_cycle()
    return event not in (h11.NEED_DATA, h11.PAUSED) and not isinstance(event, h11.ConnectionClosed)


def _found(case, read):
    if case.early:
        return tuple((method, target, None) for method, target, *_ in read if method)
    return tuple((method, target, body) for method, target, body, is_whole in read if is_whole)


class _Requests:
    def __init__(self):
        self.read, self._new = [], None
        self.parser = httptools.HttpRequestParser(self)

    def on_message_begin(self):
        self._new = [b"", b"", b"", False]
        self.read.append(self._new)

    def on_url(self, url):
        self._new[1] += url

    def on_body(self, data):
        self._new[2] += data

    def on_headers_complete(self):
        self._new[0] = self.parser.get_method()

    def on_message_complete(self):
        self._new[3] = True


def llhttp_server(case):
    found = _Requests()
    try:
        for piece in case.pieces:
            found.parser.feed_data(piece)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return _found(case, found.read), REFUSED
    return _found(case, found.read), ""


def reading(status, body, end):
    return ((status, bytes(body)) if end == "whole" else None), end


def h11_client(case):
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 16)
    connection.send(h11.Request(method=case.method, target="/", headers=[("host", "a")]))
    connection.send(h11.EndOfMessage())
    status, body = 0, bytearray()
    try:
        for piece in (*case.pieces, *([b""] if case.ends else [])):
            connection.receive_data(piece)
            while True:
                event = connection.next_event()
                if isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    return reading(status, body, "whole")
                elif not isinstance(event, h11.InformationalResponse):
                    break
            if event is h11.PAUSED:  # 101: another protocol follows
                return reading(status, body, REFUSED)
    except h11.RemoteProtocolError:
        return reading(status, body, REFUSED)
    return reading(status, body, "waits")


class Response:
    """A response as llhttp reads it."""

    def __init__(self):
        self.status, self.body = 0, b""
        self.has_head = self.is_framed = self.is_whole = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data):
        self._parser.feed_data(data)

    def on_header(self, name, value):
        self.is_framed |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self):
        if not self.is_whole and self._parser.get_status_code() >= 200:
            self.status, self.has_head = self._parser.get_status_code(), True

    def on_body(self, data):
        if not self.is_whole:
            self.body += data

    def on_message_complete(self):
        self.is_whole = self.has_head


def llhttp_client(case):
    found = Response()
    try:
        for piece in case.pieces:
            found.feed(piece)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return reading(found.status, found.body, "whole" if found.is_whole else REFUSED)
    if case.ends and not found.is_whole:  # llhttp's caller says so
        found.is_whole = found.has_head and not found.is_framed
        return reading(found.status, found.body, "whole" if found.is_whole else REFUSED)
    return reading(found.status, found.body, "whole" if found.is_whole else "waits")
