"""Identity of calls, as the program declares it; asyncio's tasks and threads inherit it.

A context variable has the identity, and so has the frame of the function with the `with` block. A
generator may be driven step by step in other threads and contexts, as web frameworks drive
streaming answers, and then only its frame has the identity. Between its steps, the block of a
generator does not apply to the code that drives it.
"""

import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import FrameType
from typing import NamedTuple, Optional

from kairos_client import ends


class Identity(NamedTuple):
    """Identity of a call. None: not known."""

    workflow: str | None = None
    agent: str | None = None
    upstream: str | None = None  # the agent whose output led to the call
    app: str | None = None
    deadline: int | None = None  # µs since the epoch: after it the answer is not needed

    def over(self, other: "Identity") -> "Identity":
        """Return this identity, with missing fields taken from the other."""
        said = {name: value for name, value in self._asdict().items() if value is not None}
        return other._replace(**said)


NOBODY = Identity()


class Scope:
    """Block whose calls have an identity, with the block around it."""

    def __init__(
        self, identity: Identity, outer: Optional["Scope"], frame: FrameType | None = None
    ) -> None:
        self.identity, self.outer, self.frame = identity, outer, frame
        self.has_ended = False
        self._place = _place()

    def holds(self, running: set[FrameType]) -> bool:
        """Return whether the calling code is inside the block.

        `running`: the frames on its stack.
        """
        if self.has_ended:
            return False
        if self.frame is None or self.frame in running or not _is_generator(self.frame):
            return True
        return self._place != _place()  # else its generator would be running


current: ContextVar[Scope | None] = ContextVar("kairos_client", default=None)
_by_frame: dict[FrameType, list[Scope]] = {}  # of the blocks that are open


def scope() -> Scope | None:
    """Return the innermost block that the calling code is in."""
    own: Scope | None = None
    running = set[FrameType]()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        running.add(frame)
        if own is None and (blocks := _by_frame.get(frame)):
            own = blocks[-1]
        frame = frame.f_back
    inherited = current.get()
    while inherited is not None and not inherited.holds(running):
        inherited = inherited.outer
    if own is None:
        return inherited
    inner = inherited
    while inner is not None and inner is not own:
        inner = inner.outer
    return own if inner is None else inherited


def identity() -> Identity:
    """Return the identity of the calling code, as far as the program declared it."""
    found = scope()
    return NOBODY if found is None else found.identity


@contextmanager
def workflow(
    name: str | None = None, *, app: str | None = None, deadline_s: float | None = None
) -> Iterator[str]:
    """Make all calls inside part of one workflow, which ends with the block. Yield its id.

    Args:
        name: its id; None: a new one.
        app: the kind of workflow.
        deadline_s: seconds from now; after that Kairos cancels the workflow's calls.
    """
    name = name or uuid.uuid4().hex
    deadline = None if deadline_s is None else int((time.time() + deadline_s) * 1_000_000)
    begun = _enter(Identity(workflow=name, app=app, deadline=deadline), _owner())
    try:
        yield name
    finally:
        _leave(begun)
        ends.tell(name)


@contextmanager
def agent(name: str, *, upstream: str | None = None) -> Iterator[None]:
    """Name the agent of all calls inside; `upstream`: the agent whose output led to them."""
    begun = _enter(identity()._replace(agent=name, upstream=upstream), _owner())
    try:
        yield
    finally:
        _leave(begun)


@contextmanager
def inherited(outer: Scope | None) -> Iterator[None]:
    """Take over another block's identity for as long as that block lasts, as in a thread."""
    token = current.set(outer)
    try:
        yield
    finally:
        current.reset(token)


def _enter(who: Identity, frame: FrameType | None) -> Scope:
    begun = Scope(who, scope(), frame)
    if frame is not None:
        _by_frame.setdefault(frame, []).append(begun)
    current.set(begun)
    return begun


def _leave(begun: Scope) -> None:
    """End a block, perhaps in another thread and context than its start."""
    begun.has_ended = True
    frame, begun.frame = begun.frame, None
    if frame is not None:
        open_here = _by_frame.get(frame, [])
        if begun in open_here:
            open_here.remove(begun)
        if not open_here:
            _by_frame.pop(frame, None)
    if current.get() is begun:
        current.set(begun.outer)


def _owner() -> FrameType | None:
    """Return the frame of the function with the `with` block.

    Context managers of the program's own, made by contextlib, belong to the function that uses
    them.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        above = frame.f_back
        is_manager = _is_generator(frame) and above is not None and _is_contextlib(above)
        if not is_manager and not _is_contextlib(frame):
            return frame
        frame = above
    return None


def _is_contextlib(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "contextlib"


def _is_generator(frame: FrameType) -> bool:
    return bool(frame.f_code.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR))


def _place() -> tuple[int, int | None]:
    """Return the ids of the running thread and asyncio task."""
    asyncio = sys.modules.get("asyncio")  # a program that has not imported it runs no task
    try:
        task = None if asyncio is None else asyncio.current_task()
    except (AttributeError, RuntimeError):
        task = None
    return threading.get_ident(), None if task is None else id(task)
