"""Identity of calls in AutoGen (agentchat 0.7).

A run of a team is a workflow, and includes teams and agents that are used as tools. While
`run_stream` of a team or `on_messages_stream` of an `AssistantAgent` is active, a context variable
has it. A model that a team calls itself, such as one that selects the speaker, and agents of other
classes are identified by their message handler.

All of this is public API, except that a handler's type is the agent's name followed by its key. An
agent that runs without a team has no workflow, nor has a team in a runtime of the user's own.
Upstream is not set: an agent receives the messages of all earlier speakers.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from functools import wraps
from typing import Any
from uuid import uuid4

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import MessageHandlerContext

from kairos_client.context import NOBODY, Identity

Stream = AsyncGenerator[Any, None]
Streaming = Callable[..., Stream]

_running: ContextVar[Identity] = ContextVar("kairos_autogen", default=NOBODY)


def watch(on_end: Callable[[str], None]) -> None:
    AssistantAgent.on_messages_stream = _turn(AssistantAgent.on_messages_stream)
    BaseGroupChat.run_stream = _run(BaseGroupChat.run_stream, on_end)


def identify() -> Identity | None:
    who = _running.get()
    if who is NOBODY:
        return None
    return who if who.agent is not None else who._replace(agent=_handler())


def _handler() -> str | None:
    try:
        handler = MessageHandlerContext.agent_id()
    except RuntimeError:
        return None
    return str(handler.type).removesuffix(f"_{handler.key}")


def _turn(stream: Streaming) -> Streaming:
    @wraps(stream)
    async def turn(self: Any, *args: Any, **kwargs: Any) -> Stream:
        who = _running.get()._replace(agent=self.name)
        async with aclosing(_as(who, stream(self, *args, **kwargs))) as items:
            async for item in items:
                yield item

    return turn


def _run(stream: Streaming, on_end: Callable[[str], None]) -> Streaming:
    @wraps(stream)
    async def run(self: Any, *args: Any, **kwargs: Any) -> Stream:
        outer = _running.get()
        named = self.name if self.name != getattr(self, "DEFAULT_NAME", None) else None
        workflow = outer.workflow or uuid4().hex
        who = Identity(workflow=workflow, app=outer.app or named)
        try:
            async with aclosing(_as(who, stream(self, *args, **kwargs))) as items:
                async for item in items:
                    yield item
        finally:
            if outer.workflow is None:
                on_end(workflow)

    return run


async def _as(who: Identity, stream: Stream) -> Stream:
    """Yield a stream's items with an identity; between them the reader's context applies."""
    async with aclosing(stream):
        while True:
            token = _running.set(who)
            try:
                item = await anext(stream)
            except StopAsyncIteration:
                return
            finally:
                _running.reset(token)
            yield item
