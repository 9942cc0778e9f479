"""Identity of calls in AG2 (1.2).

Runs are the turns of agents; while one is driven, a context variable has it. On a network a channel
is a workflow, and ends when its hub closes it; a consulting channel that an agent opens is a
separate workflow.

Not public: `Agent._turn_scope`, which every way to run an agent uses. Agents that plain Python
calls one after another are separate workflows. The end of a channel whose hub is in another program
is not detected.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial, wraps
from re import compile as pattern
from typing import Any

from ag2 import Agent
from ag2.network import CHANNEL_DEP, BaseHubListener, Hub

from kairos_client.frameworks.runs import Run, identify

__all__ = ["identify", "watch"]

_SUBTASK = pattern(r"subtask-[0-9a-f]{8}")  # the name of an agent that is made for one task


class _Listener(BaseHubListener):
    def __init__(self, on_end: Callable[[str], None]) -> None:
        self._on_end = on_end

    async def on_channel_event(self, channel_id: str, kind: str, _payload: Any) -> None:
        if kind in ("closed", "expired"):
            self._on_end(channel_id)


def watch(on_end: Callable[[str], None]) -> None:
    Agent._turn_scope = _known_scope(Agent._turn_scope, on_end)
    Hub.__init__ = _heard(Hub.__init__, on_end)


def _heard(init: Callable[..., None], on_end: Callable[[str], None]) -> Callable[..., None]:
    @wraps(init)
    def heard_init(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.register_listener(_Listener(on_end))

    return heard_init


def _known_scope(scope: Callable[..., Any], on_end: Callable[[str], None]) -> Callable[..., Any]:
    @wraps(scope)
    @asynccontextmanager
    async def known_scope(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async with scope(self, *args, **kwargs) as drive:
            yield partial(_driven, _begun(self, kwargs["context"]), drive, on_end)

    return known_scope


def _begun(agent: Any, context: Any) -> Run:
    name = "subtask" if _SUBTASK.fullmatch(agent.name) else agent.name
    channel = context.dependencies.get(CHANNEL_DEP)
    if channel is None:
        return Run(name, is_agent=True, app=name)
    return Run(name, is_agent=True, workflow=channel.channel_id)


async def _driven(run: Run, drive: Callable[[], Any], on_end: Callable[[str], None]) -> Any:
    try:
        with run.current():
            return await drive()
    finally:
        run.end(on_end)
