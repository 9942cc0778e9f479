"""A call that Kairos makes itself, for a line of a batch or an operator of a flow: what the gateway
takes for a client, without a connection.

So it goes the way of all calls: roles, quotas, budgets, learning and the log hold for it.
"""

import asyncio
import copy
from collections.abc import Callable, Iterable

import msgspec

from kairos.core.errors import Unauthorized
from kairos.core.header_names import RAW_HEADERS, Header
from kairos.gateway.api.gateway import Gateway
from kairos.request.bodies import BodyReader
from kairos.request.caller import Caller
from kairos.request.client_response import Answering

ANSWER_BYTES = 32 << 20
_MAX_ATTEMPT = 999  # that a header may say
_RETRY_AFTER = b"retry-after"


class InnerAnswer(msgspec.Struct, frozen=True):
    """What the call was answered. `status` None: it broke off."""

    request_id: str
    status: int | None
    body: bytes = b""
    retry_after_s: int | None = None


class InnerCallers:
    """Who is let in: batches and invocations by their names, each with what its own key stood for.
    An `Access` to the gateway."""

    is_open = False

    def __init__(self) -> None:
        self._callers: dict[bytes, Caller] = {}

    def add(self, name: str, caller: Caller) -> None:
        self._callers[name.encode()] = caller

    def remove(self, name: str) -> None:
        self._callers.pop(name.encode(), None)

    def caller(self, authorization: bytes | None) -> Caller:
        """Raises Unauthorized."""
        caller = self._callers.get(authorization or b"")
        if caller is None:
            raise Unauthorized("nothing of this name is under way")
        return caller

    def known_as(self, authorization: bytes | None, address: str) -> str:  # noqa: ARG002
        return self.caller(authorization).tenant


class InnerGateway:
    """The gateway as Kairos's own calls use it: the same in all but who is let in, and that no
    words are looked at to find out what led to a call: that is known."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.callers = InnerCallers()
        self._own = copy.copy(gateway)
        self._own.access, self._own.inference = self.callers, None

    def take(self, call: "InnerCall") -> None:
        self._own.classes = self._gateway.classes  # which settings that are read again may change
        self._own.take(call)

    def is_waiting(self, call: "InnerCall") -> bool:
        """In the queue."""
        return self._own.engine.calls.is_waiting(call.request_id)


class InnerCall:
    """Asks, and takes the answer. `on_end` is told once, unless the call was left."""

    method = "POST"
    query = b""

    def __init__(
        self,
        caller: str,
        request_id: str,
        attempt: int,
        endpoint: str,
        service_class: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        on_end: Callable[["InnerCall", InnerAnswer], None],
        on_piece: Callable[[bytes], None] | None = None,
    ) -> None:
        """`caller`: the name by which `InnerCallers` know for whom it is. `on_piece` is told an
        answer with 200 as it comes, too."""
        self.name, self.request_id = caller, request_id
        self.caller = caller
        self.path, self.raw_path = endpoint, endpoint.encode()
        self.headers = [
            *headers,
            (b"authorization", caller.encode()),
            (b"content-type", b"application/json"),
            (RAW_HEADERS[Header.REQUEST_ID], request_id.encode()),
            (RAW_HEADERS[Header.ATTEMPT], b"%d" % min(attempt, _MAX_ATTEMPT)),
            (RAW_HEADERS[Header.CLASS], service_class.encode()),
        ]
        self.answering: Answering | None = None
        self.has_left = self._is_over = False
        self._body, self._on_end, self._on_piece = body, on_end, on_piece
        self._status: int | None = None
        self._retry_after_s: int | None = None
        self._answer = bytearray()

    # What is asked

    def take_body(self) -> tuple[bytes, bool]:
        """See `BodySource`."""
        return self._body, True

    def read_body_by(self, reader: BodyReader | None) -> None:
        """See `BodySource`."""
        if reader is not None:
            reader.body_came()

    def leave(self) -> None:
        """Nobody wants its answer any more, and nobody is told of it."""
        if self._is_over:
            return
        self._is_over = self.has_left = True
        answering, self.answering = self.answering, None
        if answering is not None:
            answering.client_left()

    # What is answered

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """See `Client`."""
        self._status = status
        for name, value in headers:
            if name == _RETRY_AFTER and value.isdigit():
                self._retry_after_s = int(value[:6])

    def write(self, data: bytes, *, more: bool) -> bool:
        """See `Client`."""
        if self._is_over:
            return True
        self._answer += data
        if self._on_piece is not None and self._status == 200:
            self._on_piece(data)
        if len(self._answer) > ANSWER_BYTES:
            self.leave()
            self._tell(None)
        elif not more:
            self._end(self._status)
        return True

    def cut_off(self) -> None:
        """See `Client`."""
        if not self._is_over:
            self._answer.clear()
            self._end(None)

    def _end(self, status: int | None) -> None:
        self._is_over, self.answering = True, None
        self._tell(status)

    def _tell(self, status: int | None) -> None:
        """In a turn of its own: the call has not told its facts yet."""
        answer = InnerAnswer(self.request_id, status, bytes(self._answer), self._retry_after_s)
        asyncio.get_running_loop().call_soon(self._on_end, self, answer)
