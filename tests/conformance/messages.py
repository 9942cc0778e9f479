"""Requests and responses of HTTP/1.x, whole or broken in named ways, from a seed."""

import random
from dataclasses import dataclass

AFTER = (
    b"GET /after HTTP/1.1\r\nHost: a\r\n\r\n"  # who reads the first one otherwise, loses this one
)
_BODIES = (
    b"",
    b"{}",
    b"abc",
    bytes(range(256)),
    b"GET /inside HTTP/1.1\r\nHost: b\r\n\r\n",
    b"x" * 3000,
)


@dataclass
class Message:
    """Parts of a request or response, which ways of breaking it change."""

    start: bytes
    headers: list[bytes]
    body: bytes  # as it is sent: in chunks, or not
    line_end: bytes = b"\r\n"
    before: bytes = b""
    is_chunked: bool = False

    def wire(self) -> bytes:
        lines = (self.start, *self.headers, b"", b"")
        return self.before + self.line_end.join(lines) + self.body


@dataclass(frozen=True)
class Case:
    ways: tuple[str, ...]  # in which it is odd
    pieces: tuple[bytes, ...]
    method: bytes = b"GET"  # of what a response answers
    ends: bool = False  # the peer closes after it, a client its half
    early: bool = False  # a request is answered before its body has come


def chunks(dice: random.Random, body: bytes) -> bytes:
    sent, at = [], 0
    while at < len(body):
        size = dice.randint(1, max(1, len(body) - at))
        sent.append(b"%x\r\n%b\r\n" % (size, body[at : at + size]))
        at += size
    return b"".join(sent) + b"0\r\n\r\n"


def _frame(dice, message: Message, body: bytes) -> None:
    if dice.random() < 0.5:
        message.is_chunked = True
        message.headers.append(b"Transfer-Encoding: chunked")
        message.body = chunks(dice, body)
    else:
        message.headers.append(b"Content-Length: %d" % len(body))
        message.body = body


def _request(dice: random.Random) -> Message:
    method = dice.choice((b"GET", b"POST", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS"))
    target = dice.choice((b"/", b"/v1/chat/completions", b"/a?b=c&d=%20", b"/a/../b", b"/%2e"))
    message = Message(b"%b %b HTTP/1.1" % (method, target), [b"Host: a", b"X-A: b c"], b"")
    if method in (b"POST", b"PUT") or dice.random() < 0.1:
        _frame(dice, message, dice.choice(_BODIES))
    return message


def _response(dice: random.Random) -> Message:
    status = dice.choice(
        (b"200 OK", b"200 OK", b"404 Not Found", b"500 ", b"204 No Content", b"304 X")
    )
    message = Message(b"HTTP/1.1 " + status, [b"Content-Type: text/plain", b"X-A: b c"], b"")
    if status[:3] not in (b"204", b"304"):
        _frame(dice, message, dice.choice(_BODIES))
    return message


def _header(*lines: bytes):
    def change(dice, message: Message) -> None:
        for line in lines:
            message.headers.insert(dice.randint(0, len(message.headers)), line)

    return change


def _of_line(old: bytes, new: bytes):
    def change(dice, message: Message) -> None:
        message.start = message.start.replace(old, new)

    return change


def _of_chunks(old: bytes, new: bytes):
    """Change the last chunk, where there are chunks."""

    def change(dice, message: Message) -> None:
        if message.is_chunked:
            before, _, after = message.body.rpartition(old)
            message.body = before + new + after
        else:
            message.headers.append(b"X-Odd: no chunks")

    return change


def _attribute(name: str, value: bytes):
    def change(dice, message: Message) -> None:
        setattr(message, name, value)

    return change


def _cut(dice, message: Message) -> None:
    message.body = message.body[: len(message.body) // 2]


SHARED = {
    "bare line feeds": _attribute("line_end", b"\n"),
    "bare carriage returns": _attribute("line_end", b"\r"),
    "empty lines before": _attribute("before", b"\r\n\r\n"),
    "a folded header": _header(b"X-Folded: a\r\n b"),
    "a folded first header": lambda dice, m: m.headers.insert(0, b" X-First: a"),
    "a space before a colon": _header(b"X-Space : a"),
    "no colon": _header(b"X-Nothing"),
    "an empty name": _header(b": a"),
    "a name with a space": _header(b"X Y: a"),
    "a null in a value": _header(b"X-Null: a\0b"),
    "a control in a value": _header(b"X-Control: a\x01b"),
    "a carriage return in a value": _header(b"X-Cr: a\rb"),
    "bytes beyond ASCII in a value": _header(b"X-Far: \xff\xc3\xa4"),
    "an empty value": _header(b"X-Empty:"),
    "blanks around a value": _header(b"X-Blanks: \t a \t "),
    "a second length, the same": lambda dice, m: m.headers.extend(
        [each for each in m.headers if each.startswith(b"Content-Length")]
    ),
    "a second length": _header(b"Content-Length: 5"),
    "a length of two": _header(b"Content-Length: 3, 3"),
    "a length with a sign": _header(b"Content-Length: +3"),
    "a negative length": _header(b"Content-Length: -1"),
    "a length in hex": _header(b"Content-Length: 0x3"),
    "an empty length": _header(b"Content-Length: "),
    "a length without bound": _header(b"Content-Length: 99999999999999999999999"),
    "length and chunks": _header(b"Content-Length: 3", b"Transfer-Encoding: chunked"),
    "chunks twice": _header(b"Transfer-Encoding: chunked, chunked"),
    "chunks before another coding": _header(b"Transfer-Encoding: chunked, gzip"),
    "another coding": _header(b"Transfer-Encoding: gzip"),
    "another coding before chunks": _header(b"Transfer-Encoding: gzip, chunked"),
    "chunks in capitals": _header(b"Transfer-Encoding: CHUNKED"),
    "chunks in quotes": _header(b'Transfer-Encoding: "chunked"'),
    "chunks with a vertical tab": _header(b"Transfer-Encoding: \x0bchunked"),
    "identity": _header(b"Transfer-Encoding: identity"),
    "an extension of a chunk": _of_chunks(b"0\r\n\r\n", b'0;a=b;c="d"\r\n\r\n'),
    "a broken extension": _of_chunks(b"0\r\n\r\n", b"0;\x01\r\n\r\n"),
    "trailers": _of_chunks(b"0\r\n\r\n", b"0\r\nX-Trailer: a\r\nContent-Length: 5\r\n\r\n"),
    "a broken trailer": _of_chunks(b"0\r\n\r\n", b"0\r\nX Trailer\r\n\r\n"),
    "a size with zeros": _of_chunks(b"0\r\n\r\n", b"0000\r\n\r\n"),
    "a size with a blank": _of_chunks(b"0\r\n\r\n", b"0 \r\n\r\n"),
    "a size with a sign": _of_chunks(b"0\r\n\r\n", b"-0\r\n\r\n"),
    "a size of a wrong letter": _of_chunks(b"0\r\n\r\n", b"g\r\n\r\n"),
    "a size without bound": _of_chunks(b"0\r\n\r\n", b"fffffffffffffffff\r\n\r\n"),
    "a chunk with a bare line feed": _of_chunks(b"0\r\n\r\n", b"0\n\n"),
    "a chunk that is longer": _of_chunks(b"\r\n0\r\n", b"y\r\n0\r\n"),
    "a body that is cut": _cut,
    "HTTP/1.0": _of_line(b"HTTP/1.1", b"HTTP/1.0"),
    "HTTP/2.0": _of_line(b"HTTP/1.1", b"HTTP/2.0"),
    "HTTP/1.2": _of_line(b"HTTP/1.1", b"HTTP/1.2"),
    "small letters": _of_line(b"HTTP/1.1", b"http/1.1"),
    "Connection: close": _header(b"Connection: close"),
    "Connection: keep-alive": _header(b"Connection: keep-alive"),
    "many headers": lambda dice, m: m.headers.extend([b"X-Many: %d" % n for n in range(60)]),
}
OF_REQUESTS = SHARED | {
    "no host": lambda dice, m: m.headers.remove(b"Host: a"),
    "two hosts": _header(b"Host: b"),
    "an offer of HTTP/2": _header(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c"),
    "an offer without Connection": _header(b"Upgrade: h2c"),
    "an offer of WebSockets": _header(b"Connection: upgrade", b"Upgrade: websocket"),
    "Expect: 100-continue": _header(b"Expect: 100-continue"),
    "Expect of another kind": _header(b"Expect: 200-ok"),
    "no version": _of_line(b" HTTP/1.1", b""),
    "two blanks": _of_line(b" HTTP", b"  HTTP"),
    "a tab": _of_line(b" HTTP", b"\tHTTP"),
    "a blank in the target": _of_line(b" HTTP", b" a HTTP"),
    "a target with a host": _of_line(b" /", b" http://a/"),
    "a target beyond ASCII": _of_line(b" /", b" /\xff"),
    "an asterisk": lambda dice, m: setattr(m, "start", b"OPTIONS * HTTP/1.1"),
    "a fragment": _of_line(b" HTTP", b"#a HTTP"),
    "an unknown method": lambda dice, m: setattr(m, "start", b"ODD /a HTTP/1.1"),
    "a method in small letters": lambda dice, m: setattr(m, "start", b"get /a HTTP/1.1"),
    "CONNECT": lambda dice, m: setattr(m, "start", b"CONNECT a:80 HTTP/1.1"),
    "HTTP/0.9": _of_line(b"HTTP/1.1", b"HTTP/0.9"),
}


def _early(dice, message: Message) -> None:
    message.before = b"HTTP/1.1 100 Continue\r\n\r\n"


OF_RESPONSES = SHARED | {
    "100 before": _early,
    "103 before": _attribute("before", b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"),
    "101": lambda dice, m: setattr(m, "start", b"HTTP/1.1 101 Switching Protocols"),
    "no reason": lambda dice, m: setattr(m, "start", m.start[:12]),
    "a reason beyond ASCII": lambda dice, m: setattr(m, "start", m.start[:12] + b" \xff"),
    "a status of two digits": lambda dice, m: setattr(m, "start", b"HTTP/1.1 20 OK"),
    "a status of four digits": lambda dice, m: setattr(m, "start", b"HTTP/1.1 2000 OK"),
    "a status of 600": lambda dice, m: setattr(m, "start", b"HTTP/1.1 600 Odd"),
    "no length": lambda dice, m: setattr(
        m, "headers", [x for x in m.headers if x[:9] not in (b"Content-L", b"Transfer-")]
    ),
    "more than was asked": lambda dice, m: setattr(m, "body", m.body + b"HTTP/1.1 200 OK\r\n\r\n"),
    "an offer": _header(b"Connection: upgrade", b"Upgrade: h2c"),
}


def _cases(dice: random.Random, count: int, make, ways, follow: bytes):
    names = sorted(ways)
    for number in range(count):
        message = make(dice)
        if number < 3 * len(names):  # each way by itself, thrice
            chosen = [names[number // 3]]
        else:
            chosen = dice.sample(names, dice.choice((0, 1, 1, 2, 2, 3)))
        applied = []
        for name in chosen:
            try:
                ways[name](dice, message)
            except ValueError:  # another way took it away
                continue
            applied.append(name)
        wire = message.wire() + follow
        cuts = sorted(dice.randint(0, len(wire)) for _ in range(dice.choice((0, 0, 1, 3))))
        pieces = tuple(
            wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True) if b > a
        )
        method = b"HEAD" if dice.random() < 0.1 else b"GET"
        ends, early = dice.random() < 0.5, dice.random() < 0.25
        yield Case(tuple(applied), pieces, method, ends=ends, early=early)


def requests(seed: int, count: int):
    return _cases(random.Random(seed), count, _request, OF_REQUESTS, AFTER)


def responses(seed: int, count: int):
    return _cases(random.Random(seed), count, _response, OF_RESPONSES, b"")
