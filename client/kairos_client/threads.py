"""Threads inherit who calls from where they are started, as asyncio's tasks do."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any

from kairos_client.context import Identity, current


def inherit() -> None:
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def start_as(self: threading.Thread) -> None:
        self.run = _as(current.get(), self.run)  # type: ignore[method-assign]
        start(self)

    # A pool's thread serves whoever comes, not only who had it started.
    def submit_as(self: Any, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        return submit(self, _as(current.get(), call), *args, **kwargs)

    threading.Thread.start = start_as  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = submit_as  # type: ignore[method-assign]


def _as(who: Identity, call: Any) -> Any:
    @wraps(call)
    def called(*args: Any, **kwargs: Any) -> Any:
        token = current.set(who)
        try:
            return call(*args, **kwargs)
        finally:
            current.reset(token)

    return called
