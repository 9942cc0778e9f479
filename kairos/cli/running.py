"""Runs the event loop of a command, and takes the signals that it gets."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import uvloop

from kairos.core import KairosError, SetupError
from kairos.settings import Settings

if TYPE_CHECKING:
    from kairos.cluster import KafkaCluster

_T = TypeVar("_T")


def run(
    main: Coroutine[None, None, _T],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> _T:
    with _first_of_many(), asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main)


@contextmanager
def _first_of_many() -> Iterator[None]:
    """Raise the first error of several tasks that says what to do."""
    try:
        yield
    except BaseExceptionGroup as group:
        if (expected := group.subgroup(KairosError)) is None:
            raise
        error: BaseException = expected
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def cluster_named(settings: Settings, otherwise: str) -> "KafkaCluster":
    """Return the Kafka cluster in the settings. Raises SetupError, with that text, without one."""
    from kairos.cluster import cluster_of

    found = cluster_of(settings, os.environ)
    if found is None:
        raise SetupError(otherwise)
    return found


def stop_signal() -> asyncio.Event:
    """Return what Ctrl-C and SIGTERM set. Hangups are ignored: the settings have just been read."""
    stop = asyncio.Event()
    on_hangup(lambda: None)
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    return stop


def on_hangup(act: Callable[[], None]) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, act)


def has_files(config_file: Path | None, settings: Settings) -> bool:
    named = (config_file, settings.keys_path, settings.tls_certificate)
    return any(each is not None for each in named)
