"""The engine adapter, which carries the calls of one process to engines."""

from kairos.core import Event
from kairos.proxy.calls_at_once import CallsAtOnce
from kairos.proxy.calls_in_flight import CallsInFlight
from kairos.proxy.engine_client import EngineClient
from kairos.proxy.stall_watch import StallWatch
from kairos.request import FailedBodies


class HttpEngine:
    """Engine adapter: the parts that a call needs.

    A call registers as waiting (`calls`); its dispatch names the instance, and it is sent there
    (`client`). Its longest steps are taken at the loop's `pace`. A call that its instance has lost
    is sent to another one (`stall_watch`).
    """

    def __init__(self, client: EngineClient) -> None:
        """Create the adapter. `client` must have been entered."""
        self.calls = CallsInFlight()
        self.client = client
        self.stall_watch = StallWatch(self.calls)
        self.at_once = CallsAtOnce(self.calls)
        self.pace = client.pace
        self.failed_bodies = FailedBodies()

    def hear(self, event: Event) -> None:
        """Track the instances and their status."""
        self.stall_watch.hear(event)
        self.at_once.hear(event)
