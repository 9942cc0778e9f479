"""The engine adapter: what carries the calls of one process to engines."""

from kairos.core.events import Event
from kairos.proxy.calls_at_once import CallsAtOnce
from kairos.proxy.calls_in_flight import CallsInFlight
from kairos.proxy.engine_client import EngineClient
from kairos.proxy.stall_watch import StallWatch
from kairos.request.failed_bodies import FailedBodies


class HttpEngine:
    """Its parts, which a call needs together.

    A call first says that it waits (`calls`); the command that it gets says where to go, and it is
    sent there (`client`). The longest of its steps are taken at the loop's `pace`. One that its
    instance has forgotten is sent to another (`stall_watch`).
    """

    def __init__(self, client: EngineClient) -> None:
        """`client`: once it is entered."""
        self.calls = CallsInFlight()
        self.client = client
        self.stall_watch = StallWatch(self.calls)
        self.at_once = CallsAtOnce(self.calls)
        self.pace = client.pace
        self.failed_bodies = FailedBodies()

    def hear(self, event: Event) -> None:
        """Note which instances there are, and how they are."""
        self.stall_watch.hear(event)
        self.at_once.hear(event)
