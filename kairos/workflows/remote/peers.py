"""Fetch values from the processors that hold them.

Only from processors in the configuration, by the names given there: a request never supplies an
address that this process would not connect to otherwise.
"""

import asyncio
from collections.abc import Mapping, Sequence

import aiohttp

from kairos.core import InvalidRequest
from kairos.proxy import headers_with
from kairos.settings import ProcessorEngine
from kairos.workflows.remote.wire import HELD, MOST_BYTES
from kairos.workflows.retrieve.lost import ValuesLost

_REFUSED = (401, 403)
_AT_ONCE = 64  # concurrent fetches from one processor, each on a connection of its own


class ProcessorPeers:
    """Other processors, by place. `fetched_bytes`: counted since the process began."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        peers: Sequence[ProcessorEngine],
        environ: Mapping[str, str],
    ) -> None:
        self._session = session
        self._urls = {each.id: each.base_url for each in peers}
        self._headers = {
            each.id: headers_with(environ[each.api_key_env] if each.api_key_env else None)
            for each in peers
        }
        self._room = {each.id: asyncio.Semaphore(_AT_ONCE) for each in peers}
        self.fetched_bytes = 0

    def check(self, place: str) -> None:
        """Raise InvalidRequest if the configuration has no such place."""
        if place not in self._urls:
            raise InvalidRequest(
                f"a value is held by '{place[:100]}', which this processor does not "
                "know: list all processors at each of them, by the same addresses"
            )

    async def fetch(self, place: str, run: str, value_id: str) -> bytes:
        """Fetch a value as JSON.

        Raises:
            InvalidRequest: the place is not known, or rejects the API key.
            ValuesLost: the value is not there, or that processor cannot be reached.
        """
        self.check(place)
        async with self._room[place]:
            value = await self._fetched(place, run, value_id)
        self.fetched_bytes += len(value)
        return value

    async def _fetched(self, place: str, run: str, value_id: str) -> bytes:
        url = f"{self._urls[place]}{HELD}/{run}/{value_id}"
        headers = self._headers[place]
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False) as response:
                if response.status in _REFUSED:
                    raise InvalidRequest(f"{place} rejects the API key of this processor")
                if response.status != 200:
                    raise ValuesLost([value_id])
                return await _read(response, value_id)
        except (aiohttp.ClientError, TimeoutError):
            raise ValuesLost([value_id]) from None


async def _read(response: aiohttp.ClientResponse, value_id: str) -> bytes:
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > MOST_BYTES:
            raise ValuesLost([value_id])
    return bytes(raw)
