"""A worker, as the decider sees it."""

import msgspec

from kairos.cluster.pool.messages import Declined
from kairos.cluster.workers.link import FrameLink
from kairos.cluster.workers.messages import AT_ONCE, Engines, OfInstance, OrderFrame
from kairos.core import Dispatch, Refuse

_encode = msgspec.msgpack.Encoder().encode

Order = tuple[Dispatch | Refuse | Declined, int]  # with the turn that it is for


class Peer:
    """A worker that is connected."""

    def __init__(self, link: FrameLink, now: int) -> None:
        self.link = link
        self.worker = ""  # it has not said its name
        self.heard_at = now
        self.handled = self.acknowledged = 0  # numbers of facts
        self.orders: list[Order] = []
        self.engines: Engines | None = None  # news
        self.news: list[OfInstance] = []

    def send(self) -> None:
        """Send everything that the worker has not received yet."""
        if not (self.orders or self.news or self.engines or self.handled > self.acknowledged):
            return
        orders, self.orders = self.orders, []
        for start in range(0, max(1, len(orders)), AT_ONCE):
            some = orders[start : start + AT_ONCE]
            is_last = start + AT_ONCE >= len(orders)
            message = OrderFrame(
                self.handled if is_last else 0,
                tuple(command for command, _ in some),
                tuple(turn for _, turn in some),
                self.engines,
                tuple(self.news),
            )
            self.engines = None
            self.news.clear()
            self.link.send(_encode(message))
        self.acknowledged = self.handled
