"""Report the end of workflows to Kairos, from a background thread that never blocks the program."""

import atexit
import queue
import threading
import urllib.request
from collections.abc import Mapping
from urllib.parse import quote

from kairos_client import settings, trouble
from kairos_client.names import plain

_TIMEOUT_S = 2.0
_MOST = 1000  # waiting reports; Kairos detects the end of other workflows itself
_SHOW_KEYS = "authorization", "x-api-key", "api-key", "x-goog-api-key"
_MOST_KEYS = 10_000  # workflows whose key is stored


class _Teller:
    def __init__(self) -> None:
        self._over: queue.Queue[tuple[str, str, str]] = queue.Queue(_MOST)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def tell(self, workflow: str, shown: tuple[str, str]) -> None:
        try:
            self._over.put_nowait((workflow, *shown))
        except queue.Full:
            return
        with self._starting:
            if self._thread is None or not self._thread.is_alive():  # it does not survive a fork
                self._thread = threading.Thread(target=self._run, name="kairos-client", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            ended = self._over.get()
            try:
                _post(*ended)
            except Exception as error:  # noqa: BLE001 - the program continues in any case
                trouble.met("reporting the end of a workflow", error)
            finally:
                self._over.task_done()

    def flush(self) -> None:
        """Send the waiting reports at exit, for at most the timeout of one."""
        done = threading.Thread(target=self._over.join, daemon=True)
        done.start()
        done.join(_TIMEOUT_S)


_teller = _Teller()
_shown_for: dict[str, tuple[str, str]] = {}  # name and value of a header, by workflow
atexit.register(_teller.flush)


def remember_key(workflow: str, given: Mapping[str, str]) -> None:
    """Store the key of a workflow's call, to end the workflow with it.

    `given`: headers of the call, with names in lower case.
    """
    if workflow in _shown_for:
        return
    shown = next(((name, given[name]) for name in _SHOW_KEYS if given.get(name)), None)
    if shown is not None:
        while len(_shown_for) >= _MOST_KEYS:
            _shown_for.pop(next(iter(_shown_for)), None)
        _shown_for[workflow] = shown


def tell(workflow: str) -> None:
    """Report the end of a workflow, with the key of its first call, and return at once."""
    name = plain(workflow)
    if name is None:
        return
    shown = _shown_for.pop(name, None)
    if shown is None:
        key = settings.api_key()
        shown = ("authorization", f"Bearer {key}") if key else ("", "")
    if settings.base_url() is not None:
        _teller.tell(name, shown)


def _post(workflow: str, header: str, value: str) -> None:
    base = (settings.base_url() or "").rstrip("/").removesuffix("/v1")
    url = f"{base}/v1/workflows/{quote(workflow, safe='')}/end"
    request = urllib.request.Request(url, method="POST")  # noqa: S310 - the user's own URL
    if header:
        request.add_header(header, value)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310
        pass
