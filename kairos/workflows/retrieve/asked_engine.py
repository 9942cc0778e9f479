"""HTTP client of an engine that embeds or ranks."""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import aiohttp
import msgspec

from kairos.core import KairosError, Unavailable
from kairos.proxy import ask_json, ask_models

_LOOK_S = 10


class AskedEngine:
    """Engine that embeds or ranks. `models`: the ones it offers; None: it does not list them."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str,
        headers: Mapping[str, str],
        room: asyncio.Semaphore | None = None,
    ) -> None:
        """Set up the client; it sends nothing yet.

        Args:
            session: for all requests.
            base_url: with `/v1`.
            headers: of every call.
            room: limits the concurrent requests of this and other engines; None: no limit.
        """
        self._session, self._headers = session, headers
        self._room: AbstractAsyncContextManager[object] = room or nullcontext()
        self.base_url = base_url
        self.models: list[str] | None = None

    async def look(self) -> None:
        """Ask which models it offers.

        Raises:
            Unavailable: it cannot be reached, or it refuses for now.
        """
        try:
            async with asyncio.timeout(_LOOK_S):
                self.models = await ask_models(self._session, self.base_url, self._headers)
        except TimeoutError:
            raise Unavailable(f"{self.base_url} has not answered in {_LOOK_S} s") from None
        except Unavailable:
            raise
        except KairosError:  # it is there, and has no such route
            self.models = None

    def serves(self, model: str | None) -> bool:
        """Return whether it serves a model, as far as known."""
        return model is None or self.models is None or model in self.models

    async def ask(self, path: str, model: str | None, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request.

        Raises:
            Unavailable: a retry makes sense.
            KairosError: a retry makes no sense.
        """
        named = body if model is None else {**body, "model": model}
        data = msgspec.json.encode(named)
        async with self._room:
            return await ask_json(self._session, "POST", self.base_url + path, data, self._headers)
