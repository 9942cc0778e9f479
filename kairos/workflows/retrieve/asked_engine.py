"""An engine that embeds or ranks, over HTTP."""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import aiohttp
import msgspec

from kairos.core.errors import KairosError, Unavailable
from kairos.proxy.llm.http_llm import ask_json, ask_models

_LOOK_S = 10


class AskedEngine:
    """`models`: those that it offers; None: it does not tell."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str,
        headers: Mapping[str, str],
        room: asyncio.Semaphore | None = None,
    ) -> None:
        """Ask nothing yet.

        Args:
            session: of all requests.
            base_url: with `/v1`.
            headers: of every call.
            room: for as many requests as it and others may have at once; None: no limit.
        """
        self._session, self._headers = session, headers
        self._room: AbstractAsyncContextManager[object] = room or nullcontext()
        self.base_url = base_url
        self.models: list[str] | None = None

    async def look(self) -> None:
        """See which models it offers.

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
        """As far as it tells."""
        return model is None or self.models is None or model in self.models

    async def ask(self, path: str, model: str | None, body: dict[str, Any]) -> dict[str, Any]:
        """Raises Unavailable where trying again makes sense, another KairosError where not."""
        named = body if model is None else {**body, "model": model}
        data = msgspec.json.encode(named)
        async with self._room:
            return await ask_json(self._session, "POST", self.base_url + path, data, self._headers)
