"""Admission of calls that performers report, or that arrive over the bus."""

import msgspec

from kairos.cluster.pool.bus_call import BusCall
from kairos.cluster.pool.decision_publisher import DecisionPublisher, FactContext
from kairos.cluster.pool.decisions import Decisions
from kairos.cluster.pool.messages import Declined, Told, check_event
from kairos.cluster.pool.pool_calls import Open, PoolCalls
from kairos.core import Arrived, Clock, KairosError, RequestIdTaken, RequestInFlight


class Admitting:
    """Admission: hand arriving calls to the balancer, and remember who performs them."""

    def __init__(
        self,
        decisions: Decisions,
        publisher: DecisionPublisher,
        pool_calls: PoolCalls,
        clock: Clock,
    ) -> None:
        self._decisions = decisions
        self._publisher = publisher
        self._pool_calls = pool_calls
        self._clock = clock

    def arrive(self, arrived: Arrived, told: Told, offset: int) -> None:
        request = arrived.request
        try:
            check_event(arrived)
            self.admit(arrived, told.performer, offset, turn=told.turn)
        except KairosError as error:
            declined = Declined.of(request.id, error)
            self._publisher.refuse(told.performer, declined, told.turn, offset)

    def admit(
        self,
        arrived: Arrived,
        performer: str,
        offset: int,
        *,
        call: BusCall | None = None,
        turn: int = 0,
    ) -> None:
        """Admit a call.

        Raises:
            KairosError: The balancer refuses the request.
        """
        request = arrived.request
        other = self._pool_calls.get(request.id)
        if other is not None:
            is_own = other.request.tenant == request.tenant
            raise (RequestInFlight if is_own else RequestIdTaken)(request.id)
        now = self._clock.now()
        request = msgspec.structs.replace(
            request,
            arrived_at=min(request.arrived_at, now),
            workflow_started_at=min(request.workflow_started_at, now),
        )
        self._pool_calls.add(Open(request, performer, offset, now, call=call, turn=turn))
        context = FactContext(
            workflow_id=request.workflow_id, performer=performer, cause=offset, turn=turn
        )
        try:
            self._decisions.feed(Arrived(request, arrived.body), context)
        except KairosError:
            self._pool_calls.remove(request.id)
            raise
