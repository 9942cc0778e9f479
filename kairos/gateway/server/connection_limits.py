"""Limits on connections, in total and per address, and on unfinished request heads.

They count addresses, since nothing else is known of a connection before it has shown a key. For
IPv6 an address is its 64-bit network: one host may have all of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from ipaddress import IPv6Address
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from kairos.core import LONE_TENANT_SHARE, KairosError, ShareUsed, is_within_share
from kairos.gateway.server.exchange import STATUS_LINE
from kairos.gateway.server.openai_errors import whole_error
from kairos.host import most_files
from kairos.settings import Settings

if TYPE_CHECKING:
    from kairos.gateway.server.connection import Connection

HEAD_S = 30.0  # from a connection's or a request's first moment to the end of its head
UNFINISHED = 0.25  # the share of connections that may lack a whole head
# Younger heads than this may be under way as usual, however many there are.
_YOUNG_S = 1.0
_LOOKED_AT = 32  # of an address's connections, for one that is idle
_LINGER_S = 2.0  # for a client to read that its connection is refused
_LINGERING = 64  # at once; others are closed without a reason
_CLOSED = 64  # connections in a turn of the loop: takes 2 ms
_LOOK_S = 1.0  # between two looks at unfinished heads


class ClientAddress:
    __slots__ = ("connections", "name", "unfinished")

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections: dict[Connection, None] = {}  # those looked at longest ago first
        self.unfinished: dict[Connection, float] = {}  # since when their head is awaited


class ConnectionLimits:
    """Limits of one listening socket in one process."""

    def __init__(
        self,
        max_connections: int = Settings().max_connections,
        share: float = LONE_TENANT_SHARE,
        on_refused: Callable[[KairosError], None] = lambda _: None,
        idle_s: float = Settings().client_idle_s,
    ) -> None:
        """Create the limits. For `share` see `fair_share.py`.

        `idle_s` is the maximum time between two requests of a connection.
        """
        self.idle_s = idle_s
        self._max_connections, self._share, self._on_refused = max_connections, share, on_refused
        self._peers: dict[str, ClientAddress] = {}
        self._connections = self._unfinished = 0
        self.lingering = 0  # refused connections whose clients may read why
        self._looks = False
        self._closing: deque[asyncio.Transport] = deque()

    def admit_connection(
        self, connection: "Connection", transport: asyncio.Transport
    ) -> ClientAddress | None:
        """Admit a connection. None: it is refused, and told why."""
        name = address_of(transport.get_extra_info("peername"))
        peer = self._peers.get(name) or ClientAddress(name)
        if not self._has_room(peer) and not self._close_idle(peer):
            self._turn_away(transport, len(peer.connections))
            return None
        self._peers[name] = peer
        peer.connections[connection] = None
        self._connections += 1
        self.awaits_head(connection, peer)
        return peer

    def _has_room(self, peer: ClientAddress) -> bool:
        free = self._max_connections - self._connections - 1
        return is_within_share(len(peer.connections) + 1, free, self._share)

    def _close_idle(self, peer: ClientAddress) -> bool:
        """Close an idle connection of the address.

        Only the few looked at longest ago are checked.
        """
        for each in list(islice(peer.connections, _LOOKED_AT)):
            if each.is_idle:
                self.forget_connection(each, peer)
                each.close()
                return True
            del peer.connections[each]
            peer.connections[each] = None
        return False

    def forget_connection(self, connection: "Connection", peer: ClientAddress) -> None:
        """Forget a connection; repeated calls do nothing."""
        if connection not in peer.connections:
            return
        self.has_head(connection, peer)
        del peer.connections[connection]
        self._connections -= 1
        if not peer.connections:
            del self._peers[peer.name]

    def close_soon(self, transport: asyncio.Transport) -> None:
        """Close the connection of a client that has left, a few in each turn of the event loop.

        Thousands may leave at once, and each close takes a while in the loop's next turn.
        """
        if not self._closing:
            asyncio.get_running_loop().call_soon(self._close_some)
        self._closing.append(transport)

    def _close_some(self) -> None:
        closing = self._closing
        for _ in range(min(_CLOSED, len(closing))):
            closing.popleft().close()
        if closing:
            asyncio.get_running_loop().call_soon(self._close_some)

    def awaits_head(self, connection: "Connection", peer: ClientAddress) -> None:
        """Start the time limit for the next request head."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        peer.unfinished[connection] = now_s
        self._unfinished += 1
        if not self._looks:
            self._looks = True
            loop.call_later(_LOOK_S, self._end_late_heads)
        free = int(self._max_connections * UNFINISHED) - self._unfinished
        if not is_within_share(len(peer.unfinished), free, self._share):
            self._end_oldest(peer, now_s)

    def has_head(self, connection: "Connection", peer: ClientAddress) -> None:
        if peer.unfinished.pop(connection, None) is not None:
            self._unfinished -= 1

    def _end_oldest(self, peer: ClientAddress, now_s: float) -> None:
        oldest, since_s = next(iter(peer.unfinished.items()))
        if now_s - since_s > _YOUNG_S:
            self.has_head(oldest, peer)
            oldest.head_is_late()

    def _end_late_heads(self) -> None:
        loop = asyncio.get_running_loop()
        too_late_s = loop.time() - HEAD_S
        for peer in list(self._peers.values()):
            late = [each for each, since_s in peer.unfinished.items() if since_s <= too_late_s]
            for each in late:
                self.has_head(each, peer)
                each.head_is_late()
        self._looks = self._unfinished > 0
        if self._looks:
            loop.call_later(_LOOK_S, self._end_late_heads)

    def _turn_away(self, transport: asyncio.Transport, has: int) -> None:
        error = ShareUsed(f"has {has} connections")
        self._on_refused(error)
        if self.lingering >= _LINGERING:
            transport.set_protocol(asyncio.Protocol())  # the connection was never let in
            transport.abort()
            return
        self.lingering += 1
        transport.set_protocol(_Lingering(self))
        transport.write(refusal(error))
        transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGER_S, transport.abort)


class _Lingering(asyncio.Protocol):
    """Protocol that discards data from a refused client.

    If the connection were closed with unread data, the client might never see the reason.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._limits.lingering -= 1


def limits_of(settings: Settings, on_refused: Callable[[KairosError], None]) -> ConnectionLimits:
    """Create the limits for clients; each call may need a second connection, to an engine."""
    most = min(settings.max_connections, most_files() * 3 // 4)
    return ConnectionLimits(most, settings.caller_share, on_refused, settings.client_idle_s)


def refusal(error: KairosError) -> bytes:
    """Return a complete error response, after which the connection is closed."""
    headers, body = whole_error(error)
    lines = [b"%b: %b\r\n" % each for each in headers]
    return STATUS_LINE[error.status] + b"".join(lines) + b"connection: close\r\n\r\n" + body


def address_of(told: Any) -> str:
    """Return the name of an address. It has a space, unlike a tenant's name."""
    if not isinstance(told, tuple):
        return "this host"  # by a socket that is a file
    host = cast(str, told[0])
    if ":" in host:
        address = IPv6Address(host.partition("%")[0])
        mapped = address.ipv4_mapped
        host = str(mapped or IPv6Address(int(address) >> 64 << 64))
    return f"at {host}"
