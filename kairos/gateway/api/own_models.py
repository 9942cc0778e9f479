"""Models that Kairos answers itself, without an engine: see `workflows/serve`."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from kairos.proxy import Asked, Owner
from kairos.request import Caller, ClientResponse

NamesOf = Callable[[str], Awaitable[list[str]]]  # by tenant


class OwnModels(Protocol):
    def takes(self, model: str) -> bool:
        """Return whether a model with this name would be one of these, if it exists."""

    def begin(
        self, asked: Asked, content: bytes, caller: Caller, response: ClientResponse, owner: Owner
    ) -> None:
        """Answer a call; `owner` receives its end. Never raises."""

    async def names(self, tenant: str) -> list[str]: ...
