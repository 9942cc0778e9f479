"""Runs the event loop of a command."""

import asyncio
from collections.abc import Coroutine

import uvloop

from kairos.cli import agents


def run(main: Coroutine[None, None, None]) -> None:
    with (
        agents.first_of_many(),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(main)
