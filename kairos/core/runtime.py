"""Bridge between the core and its environment, live or simulated."""

from collections.abc import Callable

from kairos.core.balancer import Balancer
from kairos.core.events import Dispatch, Event, Record
from kairos.core.ports import Clock, Engine

Observer = Callable[[Record], None]


class Runtime:
    """The only reader of the clock. Timestamps facts, has them decided, logged and performed."""

    def __init__(
        self, balancer: Balancer, engine: Engine, clock: Clock, observers: tuple[Observer, ...] = ()
    ) -> None:
        self.balancer = balancer
        self._engine = engine
        self._clock = clock
        self._observers = observers

    def now(self) -> int:
        return self._clock.now()

    def feed(self, event: Event) -> None:
        """Report a fact to the balancer, and carry out its commands.

        Raises:
            KairosError: the fact is refused (see `Balancer.handle`); it is not logged.
        """
        at = self._clock.now()
        commands = self.balancer.handle(event, at)
        record = Record(at, event, tuple(commands))
        for observe in self._observers:
            observe(record)
        for command in commands:
            if isinstance(command, Dispatch):
                self._engine.dispatch(command)
            else:
                self._engine.refuse(command)
