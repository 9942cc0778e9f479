"""Identity of calls in Google's Agent Development Kit (2.13).

Runs are runs of a `Runner`, of the nodes of its workflows, and of agents; while `run_async` or
`run` of one is active, a context variable has it. A node that calls a model without an agent counts
as one.

All of this is public API. Calls of `run_live` are not detected. A resumed run is a separate
workflow.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import wraps
from typing import Any

from google.adk.agents import BaseAgent
from google.adk.runners import Runner
from google.adk.workflow import BaseNode

from kairos_client.frameworks.runs import Run, identify

__all__ = ["identify", "watch"]

_UNNAMED = "InMemoryRunner"

Stream = AsyncGenerator[Any, None]


def watch(on_end: Callable[[str], None]) -> None:
    Runner.run_async = _known(Runner.run_async, _run_of_app, on_end)
    BaseNode.run = _known(BaseNode.run, lambda node: Run(node.name), on_end)
    BaseAgent.run_async = _known(
        BaseAgent.run_async, lambda agent: Run(agent.name, is_agent=True), on_end
    )


def _run_of_app(runner: Any) -> Run:
    return Run(app=None if runner.app_name == _UNNAMED else runner.app_name)


def _known(
    stream: Callable[..., Stream], begin: Callable[[Any], Run], on_end: Callable[[str], None]
) -> Callable[..., Stream]:
    @wraps(stream)
    async def known_stream(self: Any, *args: Any, **kwargs: Any) -> Stream:
        run = begin(self)
        try:
            async with aclosing(stream(self, *args, **kwargs)) as items:
                while True:
                    try:
                        with run.current():  # between its steps the context is that of who reads it
                            item = await anext(items)
                    except StopAsyncIteration:
                        return
                    yield item
        finally:
            run.end(on_end)

    return known_stream
