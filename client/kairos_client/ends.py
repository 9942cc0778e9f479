"""Tells Kairos that workflows are over, beside the program: from a thread, and never in its way."""

import atexit
import queue
import threading
import urllib.request
from urllib.parse import quote

from kairos_client import settings, trouble
from kairos_client.names import plain

_TIMEOUT_S = 2.0
_MOST = 1000  # that wait to be told; what comes beyond, Kairos finds out by itself


class _Teller:
    def __init__(self) -> None:
        self._over: queue.Queue[str] = queue.Queue(_MOST)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def tell(self, workflow: str) -> None:
        try:
            self._over.put_nowait(workflow)
        except queue.Full:
            return
        with self._starting:
            if self._thread is None or not self._thread.is_alive():  # it is gone after a fork
                self._thread = threading.Thread(target=self._run, name="kairos-client", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            workflow = self._over.get()
            try:
                _post(workflow)
            except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
                trouble.met("telling that a workflow is over", error)
            finally:
                self._over.task_done()

    def flush(self) -> None:
        """At the program's end, for as long as one may take to be told."""
        done = threading.Thread(target=self._over.join, daemon=True)
        done.start()
        done.join(_TIMEOUT_S)


_teller = _Teller()
atexit.register(_teller.flush)


def tell(workflow: str) -> None:
    """Returns at once."""
    name = plain(workflow)
    if name is not None and settings.base_url() is not None:
        _teller.tell(name)


def _post(workflow: str) -> None:
    base = (settings.base_url() or "").rstrip("/").removesuffix("/v1")
    url = f"{base}/v1/workflows/{quote(workflow, safe='')}/end"
    request = urllib.request.Request(url, method="POST")  # noqa: S310 - the user's own URL
    if key := settings.api_key():
        request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310
        pass
