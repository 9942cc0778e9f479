"""Decisions of the active balancer, published with the metadata of each."""

from kairos.cluster.pool.decision_publisher import DecisionPublisher, FactContext
from kairos.core import Balancer, Clock, Event, Observer, Record

_OF_OUR_OWN = FactContext()


class Decisions:
    """Counterpart of the runtime of a single process.

    It performs no commands itself: the publisher has them performed once their record is committed.
    """

    def __init__(
        self,
        balancer: Balancer,
        publisher: DecisionPublisher,
        clock: Clock,
        observers: tuple[Observer, ...],
    ) -> None:
        self._balancer = balancer
        self._publisher = publisher
        self._clock = clock
        self._observers = observers

    def feed(self, event: Event, context: FactContext = _OF_OUR_OWN) -> None:
        """Decide on a fact; without a context, on one of this process (instances, profiles, time).

        Raises:
            KairosError: The fact is refused (see `Balancer.handle`); nothing is published.
        """
        at = self._clock.now()
        record = Record(at, event, tuple(self._balancer.handle(event, at)))
        self._publisher.publish(record, context)
        for observe in self._observers:
            observe(record)
