"""Comments in a stream whose call waits, which show the client that the connection is alive."""

import asyncio

from kairos.request import ClientResponse

KEEP_ALIVE_S = 5.0  # between comments in a stream that waits for its turn


class WaitComments:
    """A periodic comment, until cancelled."""

    def __init__(self, response: ClientResponse) -> None:
        self._response, self._loop = response, asyncio.get_running_loop()
        self._timer = self._loop.call_later(KEEP_ALIVE_S, self._comment)

    def cancel(self) -> None:
        self._timer.cancel()

    def _comment(self) -> None:
        self._response.keep_alive()
        self._timer = self._loop.call_later(KEEP_ALIVE_S, self._comment)
