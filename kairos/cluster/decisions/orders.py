"""Orders for the calls of a performer, and the calls that wait for one."""

from collections.abc import Iterable

from kairos.cluster.decisions.messages import Declined, Order
from kairos.core import Clock, Dispatch, Refuse
from kairos.proxy import CallsInFlight

_PATIENCE_S = 30.0  # beyond the longest wait, for a process that is to take over


class AwaitedOrders:
    """Calls of this process for which an order is awaited."""

    def __init__(self, calls: CallsInFlight, clock: Clock, *, max_wait_s: float) -> None:
        self._calls = calls
        self._clock = clock
        self._max_wait_us = int((max_wait_s + _PATIENCE_S) * 1e6)
        self._asked_at: dict[str, int] = {}  # in the order in which they began to wait

    def ask(self, request_id: str) -> int:
        """Note that a call waits from now on; return its turn."""
        self._asked_at.pop(request_id, None)
        self._asked_at[request_id] = self._clock.now()
        return self._calls.turn(request_id)

    def forget(self, request_id: str) -> None:
        """Note that a call has ended."""
        self._asked_at.pop(request_id, None)

    def obey(self, orders: Iterable[Order]) -> None:
        """Execute orders, each for a turn of its call (0: any); ignore outdated ones."""
        for command, turn in orders:
            request_id = command.request_id
            if not self._calls.expects(request_id) or turn not in (0, self._calls.turn(request_id)):
                continue
            self._asked_at.pop(request_id, None)
            match command:
                case Dispatch():
                    self._calls.dispatch(command)
                case Refuse():
                    self._calls.refuse(command)
                case Declined():
                    self._calls.decline(request_id, command.error())

    def give_up(self) -> None:
        """Refuse calls that have had no order for longer than the maximum wait."""
        while self._asked_at:
            request_id, asked_at = next(iter(self._asked_at.items()))
            if asked_at + self._max_wait_us > self._clock.now():
                return
            del self._asked_at[request_id]
            self.obey([(Refuse(request_id, None, "waited_too_long"), 0)])
