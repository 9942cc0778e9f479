"""The engine adapter: carries calls to OpenAI-compatible upstreams over kept-alive connections."""

from collections.abc import Iterable
from itertools import count
from typing import Protocol, Self

from yarl import URL

from kairos.config import ANSWER_S, STALL_S
from kairos.errors import KairosError
from kairos.events import Dispatch, Refuse
from kairos.live.process.pace import LoopPace
from kairos.live.proxy.asked import header_lines
from kairos.live.proxy.engine_answer import AnswerTaker, EngineAnswer, Limit
from kairos.live.proxy.engine_link import Origin
from kairos.live.proxy.sse import SseReader
from kairos.live.proxy.upstream import Connections
from kairos.refusals import REFUSALS

_HEADS = 64  # kept of an instance


class Upstream:
    """Where one instance is, and the key that it asks for. The key goes nowhere else."""

    def __init__(
        self,
        instance_id: str,
        base_url: str,
        api_key: str | None = None,
        *,
        priority_header: str | None = None,
    ) -> None:
        """`priority_header`: in which it is told a call's place among those that wait inside it."""
        self.id = instance_id
        self._priority = priority_header.encode("ascii") if priority_header is not None else None
        self._base_url = base_url.rstrip("/")
        url = URL(self._base_url, encoded=True)
        self.origin: Origin = url.scheme, url.raw_host or "", url.port or 0
        self._host = url.raw_authority.rpartition("@")[2].encode("ascii")
        self._path = url.raw_path.rstrip("/").encode("ascii")
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._heads: dict[tuple[str, str], bytes] = {}  # by method and path, without a query

    def url(self, path: str, query: str = "") -> URL:
        return URL(
            f"{self._base_url}{path}?{query}" if query else self._base_url + path, encoded=True
        )

    def head(self, method: str, path: str, query: bytes) -> bytes:
        """The beginning of a request: its first line, and the headers that all have."""
        if query:
            return self._head(method, path, query)
        head = self._heads.get((method, path))
        if head is None:
            head = self._head(method, path, query)
            if len(self._heads) < _HEADS:  # paths are the client's to choose: bounded
                self._heads[method, path] = head
        return head

    def priority_line(self, priority: int | None) -> bytes | None:
        """None: the call has no place there but by its arrival."""
        if priority is None or self._priority is None:
            return None
        return b"%b: %d" % (self._priority, priority)

    def _head(self, method: str, path: str, query: bytes) -> bytes:
        target = self._path + path.encode("ascii") + (b"?" + query if query else b"")
        lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), target), b"Host: " + self._host]
        lines += [f"{name}: {value}".encode() for name, value in self.headers.items()]
        return header_lines(lines)


class WaitingCall(Protocol):
    """A call that has told the engine adapter that it waits. What it is told comes while facts are
    told: it tells none itself before the loop's next turn."""

    def go(self, dispatch: Dispatch) -> None:
        """It is its turn."""

    def give_up(self, error: KairosError, *, runs: bool) -> None:
        """It ends, wherever it is; `runs`: it had its turn."""


class _Turn:
    __slots__ = ("call", "instance_id", "is_over", "number")

    def __init__(self, number: int, call: WaitingCall) -> None:
        self.number, self.call = number, call
        self.is_over = False  # it was told what it waits for
        self.instance_id: str | None = None


class HttpEngine:
    """Tells each waiting call where to go, and sends it there.

    A call first says that it waits (`expect`); the balancer's command settles what it got. The
    sending is done by whoever holds the client's connection, so bytes take no detour.
    """

    def __init__(
        self,
        upstreams: Iterable[Upstream] = (),
        *,
        stall_s: float = STALL_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`stall_s`: so long a stream may bring no event, its beginning included; `answer_s`: so
        long an answer that comes whole may take."""
        self.pace = LoopPace()
        self._streamed, self._whole = Limit(stall_s), Limit(answer_s, answer_s)
        self.upstreams = {upstream.id: upstream for upstream in upstreams}
        self.streams: dict[str, SseReader] = {}  # answers under way, by request id
        self._expected: dict[str, _Turn] = {}
        self._turns = count(1)
        self._connections: Connections | None = None

    async def __aenter__(self) -> Self:
        self._connections = Connections()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        if self._connections is not None:
            self._connections.close()

    def expect(self, request_id: str, call: WaitingCall) -> None:
        """It waits for the command that says which instance will serve the request."""
        assert request_id not in self._expected
        self._expected[request_id] = _Turn(next(self._turns), call)

    def turn(self, request_id: str) -> int:
        """Of a call that waits, or has waited: which of this process's turns it is. What was
        decided on an earlier one, of the same call or of another that went by its id, is void."""
        return self._expected[request_id].number

    def expects(self, request_id: str) -> bool:
        """Whether a call of this id is in flight."""
        return request_id in self._expected

    def running(self, instance_id: str) -> int:
        """Calls of this process that were told to go to the instance, and have not ended."""
        return sum(each.instance_id == instance_id for each in self._expected.values())

    def forget(self, request_id: str) -> None:
        self._expected.pop(request_id, None)
        self.streams.pop(request_id, None)

    def dispatch(self, command: Dispatch) -> None:
        turn = self._expected[command.request_id]
        if not turn.is_over:
            turn.is_over, turn.instance_id = True, command.instance_id
            turn.call.go(command)

    def refuse(self, command: Refuse) -> None:
        turn = self._expected[command.request_id]
        meaning = REFUSALS[command.reason]
        if not turn.is_over:
            turn.is_over = True
            turn.call.give_up(meaning.error(command), runs=False)
        elif meaning.wherever and turn.instance_id is not None:
            turn.call.give_up(meaning.error(command), runs=True)

    def decline(self, request_id: str, error: KairosError) -> None:
        """What `refuse` does, for a reason that was told from elsewhere."""
        turn = self._expected[request_id]
        if not turn.is_over:
            turn.is_over = True
            turn.call.give_up(error, runs=False)

    def send(
        self,
        instance_id: str,
        head: bytes,
        body: bytes,
        taker: AnswerTaker,
        *,
        streams: bool,
        method: str,
    ) -> EngineAnswer:
        """Send a call; `taker` is told of its answer, and of every failure, but not before this
        returns. `head`: see `asked.request_head`."""
        assert self._connections is not None, "used outside of `async with`"
        limit = self._streamed if streams else self._whole
        answer = EngineAnswer(taker, head, body, limit, method)
        self._connections.send(answer, self.upstreams[instance_id].origin)
        return answer
