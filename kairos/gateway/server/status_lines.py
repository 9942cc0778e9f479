"""The first line of an answer, by status."""

from http import HTTPStatus

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
STATUS_LINE = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode()
    for status in range(100, 600)
}
