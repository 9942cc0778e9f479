"""The order that knows the future: for simulation only, to see what any estimate could gain."""

from collections.abc import Hashable, Mapping

from kairos.model import Request
from kairos.scheduler.policies import Key


class Srpt:
    """Shortest true remaining work first. Needs, for each request, what a live service cannot know:
    the execution latency of its workflow from that call on."""

    def __init__(self, remaining_us: Mapping[str, float]) -> None:
        self._remaining_us = remaining_us

    def key(self, request: Request) -> Key:
        return self._remaining_us[request.id], request.workflow_started_at, request.arrived_at

    def state(self, request: Request) -> Hashable:  # noqa: ARG002
        return None

    def patience_us(self, request: Request) -> int | None:  # noqa: ARG002
        return None
