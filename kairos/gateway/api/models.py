"""Routes that list the served models, and describe one.

Models that Kairos answers itself, without an engine (`workflows/serve`), are listed with them.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from kairos.core import KairosError, ModelNotFound
from kairos.engines import ModelCard
from kairos.gateway.auth.access import Access, credential_of
from kairos.gateway.server.connection_limits import address_of
from kairos.gateway.server.openai_errors import send_error, send_whole
from kairos.observe import OnError
from kairos.proxy import Asked, Owner
from kairos.request import Caller, ClientResponse, Receive, Scope, Send

_ALL = "/v1/models"
_JSON = ((b"content-type", b"application/json"),)

NamesOf = Callable[[str], Awaitable[list[str]]]  # by tenant


class Models:
    """`RouteTaker` for `/v1/models` and the paths below it."""

    def __init__(
        self,
        access: Access,
        served_models: Callable[[], Awaitable[Mapping[str, ModelCard]]],
        own_models: NamesOf | None,
        on_error: OnError,
    ) -> None:
        """Create the routes.

        `own_models` returns the models that Kairos answers itself. `on_error` counts errors.
        """
        self._access, self._served, self._own = access, served_models, own_models
        self._on_error = on_error

    def takes(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return scope["method"] == "GET" and (path == _ALL or path.startswith(f"{_ALL}/"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        try:
            answer = await self._answer(scope)
        except KairosError as error:
            self._on_error(error, None, address_of(scope["client"]))
            await send_error(error, send)
            return
        await send_whole(send, 200, msgspec.json.encode(answer), _JSON)

    async def _answer(self, scope: Scope) -> dict[str, object]:
        shown = credential_of(dict(scope["headers"]))
        caller = await self._access.admitted_caller(shown)
        own = [] if self._own is None else await self._own(caller.tenant)
        known = {**await self._served(), **dict.fromkeys(own, ModelCard())}
        if scope["path"] == _ALL:
            return {"object": "list", "data": [_model(*each) for each in known.items()]}
        name = scope["path"].removeprefix(f"{_ALL}/")
        if name not in known:
            raise ModelNotFound(name, [*known])
        return _model(name, known[name])


def _model(name: str, card: ModelCard) -> dict[str, object]:
    told: dict[str, object] = {"id": name, "object": "model", "created": 0, "owned_by": "kairos"}
    if card.max_model_len is not None:
        told["max_model_len"] = card.max_model_len
    if card.parent is not None:
        told["parent"] = card.parent
    return told


class OwnModels(Protocol):
    def takes(self, model: str) -> bool:
        """Return whether a model with this name would be one of these, if it exists."""

    def begin(
        self, asked: Asked, content: bytes, caller: Caller, response: ClientResponse, owner: Owner
    ) -> None:
        """Answer a call; `owner` receives its end. Never raises."""

    async def names(self, tenant: str) -> list[str]: ...
