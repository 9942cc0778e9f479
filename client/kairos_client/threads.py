"""Let threads inherit the identity of the code that starts them, as asyncio's tasks do.

A call in a pool has the identity of the code that submits it: a pool's threads outlive the code
that started them.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from types import ModuleType
from typing import Any

from kairos_client.context import Scope, inherited, scope
from kairos_client.imports import when_imported

_GIVES = ("apply_async", "map", "map_async", "starmap", "starmap_async", "imap", "imap_unordered")


def inherit() -> None:
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def start_as(self: threading.Thread) -> None:
        self.run = _as(scope(), self.run)  # type: ignore[method-assign]
        start(self)

    def submit_as(self: Any, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        return submit(self, _as(scope(), call), *args, **kwargs)

    threading.Thread.start = start_as  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = submit_as  # type: ignore[method-assign]
    when_imported("multiprocessing.pool", _wrap_thread_pool)


def _wrap_thread_pool(module: ModuleType) -> None:
    pool = module.ThreadPool
    for name in _GIVES:
        setattr(pool, name, _given(getattr(pool, name)))


def _given(method: Any) -> Any:
    @wraps(method)
    def give(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, _as(scope(), func), *args, **kwargs)

    return give


def _as(who: Scope | None, call: Any) -> Any:
    @wraps(call)
    def called(*args: Any, **kwargs: Any) -> Any:
        with inherited(who):
            return call(*args, **kwargs)

    return called
