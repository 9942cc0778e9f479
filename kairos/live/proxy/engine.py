"""The engine adapter: what carries the calls of one process to engines."""

from collections.abc import Iterable
from typing import Self

from kairos.config import ANSWER_S, STALL_S
from kairos.live.process.pace import LoopPace
from kairos.live.proxy.calls_in_flight import CallsInFlight
from kairos.live.proxy.engine_client import EngineClient, Upstream


class HttpEngine:
    """Its parts, which a call needs together: an async context manager.

    A call first says that it waits (`calls`); the command that it gets says where to go, and it is
    sent there (`client`). The longest of its steps are taken at the loop's `pace`.
    """

    def __init__(
        self,
        upstreams: Iterable[Upstream] = (),
        *,
        stall_s: float = STALL_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        """See `EngineClient`."""
        self.calls = CallsInFlight()
        self.client = EngineClient(upstreams, stall_s=stall_s, answer_s=answer_s)
        self.pace = LoopPace()

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.client.__aexit__(*raised)
