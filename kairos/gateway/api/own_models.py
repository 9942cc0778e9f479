"""Models that Kairos answers itself, with no engine's answer but its own: see `workflows/serve`."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from kairos.proxy.asked import Asked
from kairos.proxy.told import Owner
from kairos.request.caller import Caller
from kairos.request.client_response import ClientResponse

NamesOf = Callable[[str], Awaitable[list[str]]]  # by tenant


class OwnModels(Protocol):
    def takes(self, model: str) -> bool:
        """Whether a model of this name is one of them, if there is one."""

    def begin(
        self, asked: Asked, content: bytes, caller: Caller, response: ClientResponse, owner: Owner
    ) -> None:
        """Answer a call, whose owner hears how it ended. Never raises."""

    async def names(self, tenant: str) -> list[str]: ...
