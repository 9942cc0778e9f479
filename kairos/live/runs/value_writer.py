"""Writes large values in a thread of its own, and hands on what is sent behind them in order."""

import queue
import threading
import time
from collections.abc import Callable

from kairos.errors import SetupError, Unavailable
from kairos.live.runs.large_values import LargeValues

_AGAIN_S = 0.05

_Job = tuple[bytes, bytes | None]  # an entry, and its value where that is written apart


class ValueWriter:
    """Between one thread that adds entries and the log. While nothing is being written, `is_idle`:
    then whoever adds sends by itself, which costs no thread."""

    def __init__(
        self,
        values: LargeValues,
        send: Callable[[bytes, str | None], None],
        fail: Callable[[SetupError], None],
    ) -> None:
        """
        Args:
            send: sends an entry, with the name of its value where that is in a file; is called in
                the thread.
            fail: is told why nothing is sent any more.
        """
        self._values, self._send, self._fail = values, send, fail
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        # Each is changed by one thread alone.
        self._added = self._done = self._added_bytes = self._done_bytes = 0
        self._is_left = False
        self._thread: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        return self._added == self._done

    @property
    def backlog_bytes(self) -> int:
        """Of values that are not in their files yet."""
        return self._added_bytes - self._done_bytes

    def add(self, entry: bytes, value: bytes | None) -> None:
        """Raises SetupError: such a value has no place."""
        if value is not None:
            self._values.check_place(len(value))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="run-values", daemon=True)
            self._thread.start()
        self._added += 1
        self._added_bytes += len(value or b"")
        self._jobs.put((entry, value))

    def close(self) -> None:
        """Without what is not written yet."""
        self._is_left = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None and not self._is_left:
                entry, value = job
                self._hand_on(entry, None if value is None else self._values.keep(value))
                self._done_bytes += len(value or b"")
                self._done += 1
        except SetupError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - told to whoever writes next
            self._fail(SetupError(f"a value of the run cannot be kept: {error}"))

    def _hand_on(self, entry: bytes, file: str | None) -> None:
        while not self._is_left:
            try:
                self._send(entry, file)
            except Unavailable:  # too much waits there
                time.sleep(_AGAIN_S)
            else:
                return
