"""Notification of the balancers of pools that workflows have ended.

A workflow ends when its result is on `kairos.results`, or when a client says so.
"""

import logging
import secrets
from collections.abc import Sequence

import msgspec

from kairos.cluster.bus.envelope import read_envelope
from kairos.cluster.pool.messages import TOLD, TYPE_HEADER, Told
from kairos.core import Bus, InvalidRequest, Message, Outgoing, Topic, WorkflowEnded
from kairos.observe import count_left_out

logger = logging.getLogger(__name__)

GROUP = "kairos.orchestrator.results"
TENANT = "default"  # of all agents on the bus
_AT_ONCE = 100


class Ends:
    def __init__(self, bus: Bus, pools: Sequence[str]) -> None:
        """Take the pools that workflows may have been in: each is notified of every end."""
        self.told = 0
        self._bus = bus
        self._pools = pools
        self._id = f"orchestrator-{secrets.token_hex(8)}"

    async def run(self) -> None:
        """Read results until cancelled.

        A result is handled once the workflow's end is published.
        """
        await self._bus.consume(Topic.RESULTS, GROUP, self._ended, concurrency=_AT_ONCE)

    async def tell(self, event: WorkflowEnded) -> None:
        """Publish a workflow's end; return once it is on the bus."""
        for topic, message in self._telling(event):
            await self._bus.publish(topic, message)

    async def _ended(self, message: Message) -> Sequence[Outgoing]:
        try:
            envelope = read_envelope(message)
        except InvalidRequest as error:
            logger.warning("a message of %s is left out: %s", Topic.RESULTS, error)
            count_left_out(Topic.RESULTS)
            return ()
        return self._telling(WorkflowEnded(TENANT, envelope.workflow_id))

    def _telling(self, event: WorkflowEnded) -> list[Outgoing]:
        self.told += 1
        value, headers = msgspec.json.encode(Told(self._id, event)), {TYPE_HEADER: TOLD}
        messages = (Message(key=pool, value=value, headers=headers) for pool in self._pools)
        return [(Topic.REQUESTS, message) for message in messages]
