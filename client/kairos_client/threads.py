"""Threads inherit who calls from where they are started, as asyncio's tasks do."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any

from kairos_client.context import NOBODY, Identity, current


def inherit() -> None:
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    @wraps(start)
    def start_as(self: threading.Thread) -> None:
        here = current.get()
        if here is not NOBODY:
            self.run = _as(here, self.run)  # type: ignore[method-assign]
        start(self)

    @wraps(submit)
    def submit_as(self: ThreadPoolExecutor, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        here = current.get()
        return submit(self, call if here is NOBODY else _as(here, call), *args, **kwargs)

    threading.Thread.start = start_as  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = submit_as  # type: ignore[assignment,method-assign]


def _as(who: Identity, call: Any) -> Any:
    @wraps(call)
    def called(*args: Any, **kwargs: Any) -> Any:
        token = current.set(who)
        try:
            return call(*args, **kwargs)
        finally:
            current.reset(token)

    return called
