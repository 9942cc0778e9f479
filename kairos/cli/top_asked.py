"""Polling of a running Kairos's operators' port for its present state."""

import contextlib
import http.client
import time
from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.live import Live

from kairos.cli.top_shown import shown
from kairos.core import SetupError
from kairos.gateway import NowView
from kairos.host import check_url, connection_to, context_of, troubles_told
from kairos.settings import TlsFiles

_TIMEOUT_S = 5.0
_SAID = 300  # characters of an answer that are shown
_MOST_BYTES = 64 << 20
_WIDTH = 140  # where there is no terminal


def watch(url: str, key: str | None, files: TlsFiles, interval_s: float, *, once: bool) -> None:
    """Show the state until interrupted; once with `once` or without a terminal.

    Raises:
        SetupError: No Kairos of this version answers; the message quotes the answer.
            After the first answer, failures are retried.
    """
    console = Console()
    with _asking(url, key, files) as ask:
        view = ask()
        if once or not console.is_terminal:
            console.width = console.width if console.is_terminal else _WIDTH
            console.print(shown(view, None, view.queue.total))
            return
        before, trouble = view, ""
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                rows = max(1, console.height - len(view.instances) - 10)
                live.update(shown(view, before, rows, trouble), refresh=True)
                time.sleep(interval_s)
                try:
                    before, view, trouble = view, ask(), ""
                except SetupError as error:
                    trouble = str(error)


class _Asking:
    """Client on one connection, as long as that lasts."""

    def __init__(self, connection: http.client.HTTPConnection, url: str, key: str | None) -> None:
        self._connection, self._url = connection, url
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def __call__(self) -> NowView:
        try:
            with troubles_told(self._url):
                self._connection.request("GET", "/ui/data/now", headers=self._headers)
                answer = self._connection.getresponse()
                content = answer.read(_MOST_BYTES)
        except SetupError:
            self._connection.close()  # it is opened again by the next that is asked
            raise
        if answer.status != 200:
            said = content[:_SAID].decode(errors="replace")
            raise SetupError(f"{self._url} answered {answer.status}: {said}")
        try:
            return msgspec.json.decode(content, type=NowView)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise SetupError(
                f"{self._url} is not the operators' port of a Kairos of this version"
            ) from None


@contextlib.contextmanager
def _asking(url: str, key: str | None, files: TlsFiles) -> Iterator[_Asking]:
    check_url(url)
    connection = connection_to(url, context_of(url, files), _TIMEOUT_S)
    with contextlib.closing(connection):
        yield _Asking(connection, url, key)
