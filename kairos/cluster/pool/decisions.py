"""The active balancer's facts: decided on, and published with what goes with each."""

from kairos.cluster.pool.decision_publisher import DecisionPublisher, FactContext
from kairos.core.balancer import Balancer
from kairos.core.events import Event, Record
from kairos.core.ports import Clock
from kairos.core.runtime import Observer

_OF_OUR_OWN = FactContext()


class Decisions:
    """What the runtime is where one process does all. It performs no commands: the publisher has
    them performed, once their record is safe."""

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
        """Without a context: a fact of this process's own, of instances, of what was learnt, of
        time.

        Raises:
            KairosError: the fact is refused (see `Balancer.handle`); nothing is said of it.
        """
        at = self._clock.now()
        record = Record(at, event, tuple(self._balancer.handle(event, at)))
        self._publisher.publish(record, context)
        for observe in self._observers:
            observe(record)
