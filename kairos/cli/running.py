"""Runs the event loop of a command."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import uvloop

from kairos.cli import agents

_T = TypeVar("_T")


def run(main: Coroutine[None, None, _T]) -> _T:
    with (
        agents.first_of_many(),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(main)
