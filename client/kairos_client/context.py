"""Who calls, as the program itself says: a context that asyncio's tasks and threads inherit."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from kairos_client import ends


class Identity(NamedTuple):
    """None: not known."""

    workflow: str | None = None
    agent: str | None = None
    upstream: str | None = None  # the agent whose output led to the call
    app: str | None = None
    deadline: int | None = None  # µs since the epoch: nobody waits for the answer after it

    def over(self, other: "Identity") -> "Identity":
        """What it says, and else what the other does."""
        said = {name: value for name, value in self._asdict().items() if value is not None}
        return other._replace(**said)


NOBODY = Identity()
current: ContextVar[Identity] = ContextVar("kairos_client", default=NOBODY)


@contextmanager
def workflow(
    name: str | None = None, *, app: str | None = None, deadline_s: float | None = None
) -> Iterator[str]:
    """All calls inside belong to one workflow, which ends with the block. Gives its id.

    Args:
        name: its id; one is made up where none is given.
        app: what kind of workflow it is.
        deadline_s: from now on; Kairos gives up what nobody waits for any more.
    """
    name = name or uuid.uuid4().hex
    deadline = None if deadline_s is None else int((time.time() + deadline_s) * 1_000_000)
    token = current.set(Identity(workflow=name, app=app, deadline=deadline))
    try:
        yield name
    finally:
        current.reset(token)
        ends.tell(name)


@contextmanager
def agent(name: str, *, upstream: str | None = None) -> Iterator[None]:
    """All calls inside are made by this agent; `upstream`: the one whose output led to them."""
    token = current.set(current.get()._replace(agent=name, upstream=upstream))
    try:
        yield
    finally:
        current.reset(token)
