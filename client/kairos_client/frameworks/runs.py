"""Nested runs, for frameworks whose agents are run by tools and workflows of others.

The outermost run is a workflow, and nested runs belong to it. The first call of a run that an
agent's tool began has an upstream, that agent, while no run of its tools has answered yet. Other
data passed between agents shows in the text.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import uuid4

from kairos_client.context import Identity


class Run:
    """Run of an agent, or of an object that may contain agents. It begins when it is made.

    Args:
        agent: name of the agent, or of a step that makes calls itself.
        is_agent: whether `agent` is an agent.
        app: of the workflow, if this is the outermost run.
        workflow: the workflow it belongs to, if the framework knows; it does not end with the run.
    """

    def __init__(
        self,
        agent: str | None = None,
        *,
        is_agent: bool = False,
        app: str | None = None,
        workflow: str | None = None,
    ) -> None:
        outer = _current.get()
        if outer and workflow not in (None, outer.workflow):
            outer = None
        self.outer = outer
        self.agent = agent
        self.is_agent = is_agent
        self.is_whole = not outer and workflow is None
        self.workflow: str = outer.workflow if outer else workflow or uuid4().hex
        self.app: str | None = outer.app if outer else app
        self.has_called = False
        self.is_answered = False  # by what began inside of it, since it called
        self.caller: str | None = outer.leads() if outer else None

    def leads(self) -> str | None:
        """Return the agent that led to a run beginning inside this one now, if that is certain."""
        if self.is_answered:
            return None
        if self.has_called:
            return self.agent if self.is_agent else None
        return self.caller

    @contextmanager
    def current(self) -> Iterator[None]:
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def end(self, on_end: Callable[[str], None]) -> None:
        if not self.has_called and not self.is_answered:
            return
        if self.outer is not None:
            self.outer.is_answered = True
        elif self.is_whole:
            on_end(self.workflow)


_current: ContextVar[Run | None] = ContextVar("kairos_client_run", default=None)


def identify() -> Identity | None:
    run = _current.get()
    if run is None:
        return None
    upstream = None if run.has_called else run.caller
    run.has_called, run.is_answered = True, False
    return Identity(workflow=run.workflow, agent=run.agent, upstream=upstream, app=run.app)
