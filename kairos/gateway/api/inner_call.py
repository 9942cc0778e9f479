"""A call that Kairos makes itself, for a line of a batch or an operator of a flow.

It is a client of the gateway without a connection. So it is treated like any call: roles, quotas,
budgets, learning and the log apply to it.
"""

import asyncio
import copy
from collections.abc import Callable, Iterable

import msgspec

from kairos.core import RAW_HEADERS, Header, Unauthorized
from kairos.gateway.api.gateway import Gateway
from kairos.request import Answering, BodyReader, Caller

ANSWER_BYTES = 32 << 20
_MAX_ATTEMPT = 999  # that a header may say
_RETRY_AFTER = b"retry-after"


class InnerAnswer(msgspec.Struct, frozen=True):
    """Answer to an inner call. `status` None: the answer was cut off."""

    request_id: str
    status: int | None
    body: bytes = b""
    retry_after_s: int | None = None


class InnerCallers:
    """`Access` of inner calls: batches and invocations by name, with the rights of their keys."""

    is_open = False

    def __init__(self) -> None:
        self._callers: dict[bytes, Caller] = {}

    def add(self, name: str, caller: Caller) -> None:
        self._callers[name.encode()] = caller

    def remove(self, name: str) -> None:
        self._callers.pop(name.encode(), None)

    def caller(self, authorization: bytes | None) -> Caller:
        """Return the caller with that name. Raises Unauthorized: The name is unknown."""
        caller = self._callers.get(authorization or b"")
        if caller is None:
            raise Unauthorized("no batch or invocation with this name is in progress")
        return caller

    def known_as(self, authorization: bytes | None, address: str) -> str:  # noqa: ARG002
        return self.caller(authorization).tenant


class InnerGateway:
    """The gateway for Kairos's own calls.

    It differs in who is admitted, and infers no parents from texts: inner calls declare them.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.callers = InnerCallers()
        self._own = copy.copy(gateway)
        self._own.access, self._own.inference = self.callers, None

    def start_call(self, call: "InnerCall") -> None:
        self._own.classes = self._gateway.classes  # a reload of the settings may change them
        self._own.start_call(call)

    def is_waiting(self, call: "InnerCall") -> bool:
        return self._own.engine.calls.is_waiting(call.request_id)


class InnerCall:
    """`Client` and `BodySource` of an inner call.

    `on_end` is called once, unless the call was left.
    """

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
        """Create the call.

        `caller` is the name that `InnerCallers` know. `on_piece` also receives the parts of an
        answer with status 200 as they arrive.
        """
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
        return self._body, True

    def read_body_by(self, reader: BodyReader | None) -> None:
        if reader is not None:
            reader.body_came()

    def leave(self) -> None:
        """Cancel the call without calling `on_end`."""
        if self._is_over:
            return
        self._is_over = self.has_left = True
        answering, self.answering = self.answering, None
        if answering is not None:
            answering.client_left()

    # What is answered

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._status = status
        for name, value in headers:
            if name == _RETRY_AFTER and value.isdigit():
                self._retry_after_s = int(value[:6])

    def write(self, data: bytes, *, more: bool) -> bool:
        if self._is_over:
            return True
        self._answer += data
        if self._on_piece is not None and self._status == 200:
            self._on_piece(data)
        if len(self._answer) > ANSWER_BYTES:
            self.leave()
            self._report_answer(None)
        elif not more:
            self._finish_answer(self._status)
        return True

    def cut_off(self) -> None:
        if not self._is_over:
            self._answer.clear()
            self._finish_answer(None)

    def _finish_answer(self, status: int | None) -> None:
        self._is_over, self.answering = True, None
        self._report_answer(status)

    def _report_answer(self, status: int | None) -> None:
        """Report the answer in the next turn of the loop, after the call's last facts."""
        answer = InnerAnswer(self.request_id, status, bytes(self._answer), self._retry_after_s)
        asyncio.get_running_loop().call_soon(self._on_end, self, answer)
