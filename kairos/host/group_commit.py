"""Group commits to SQLite, in a thread of its own, so that callers do not wait for the disk.

Changes are committed after 50 ms or 256 changes, whichever is first, in the order in which they
were added: after a crash the database has all changes up to some point, and none after it.

While the disk is full a group is retried every second, which is reported. Callers check `backlog`
and `backlog_bytes`, and add no more while they grow. For data that may be lost (a cache), the group
is dropped instead.
"""

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from kairos.host.sqlite_file import transaction

GROUP_S = 0.05
GROUP_CHANGES = 256
RETRY_S = 1.0
# Whatever else the device says of itself is an I/O error, too.
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)

Change = tuple[str, tuple[Any, ...]]  # a statement and its parameters
_T = TypeVar("_T")


class Groups(Generic[_T]):
    """Changes on their way to the thread that writes them, which takes them in groups.

    The thread sleeps while a group gathers. To wake it for each change, as a queue does, costs
    several times what it costs to write the change.
    """

    def __init__(self, gather_s: float, most: int) -> None:
        """A group ends `gather_s` seconds after its first change, or when it has `most`."""
        self._gather_s, self._most = gather_s, most
        self._waiting: deque[_T | threading.Event] = deque()
        self._has_any, self._is_urgent = threading.Event(), threading.Event()
        self._is_closed = False

    def put(self, change: _T) -> None:
        self._waiting.append(change)
        if not self._has_any.is_set():
            self._has_any.set()
        if len(self._waiting) >= self._most and not self._is_urgent.is_set():
            self._is_urgent.set()

    def hurry(self, settled: threading.Event) -> None:
        """Let the group end now; the writer sets `settled` when the changes are written."""
        self._waiting.append(settled)
        self._end_group()

    def close(self) -> None:
        """Let the last group end now."""
        self._is_closed = True
        self._end_group()

    def next_group(self) -> tuple[list[_T], list[threading.Event], bool]:
        """Wait for a group. Return it, what to set after it, and whether more may follow."""
        self._has_any.wait()
        self._is_urgent.wait(self._gather_s)
        # Cleared before it looks: a change that comes later sets them again.
        self._has_any.clear()
        self._is_urgent.clear()
        is_last = self._is_closed
        group: list[_T] = []
        settled: list[threading.Event] = []
        while self._waiting and len(group) < self._most:
            each = self._waiting.popleft()
            if isinstance(each, threading.Event):
                settled.append(each)
            else:
                group.append(each)
        if self._waiting or is_last:
            self._end_group()
        return group, settled, bool(self._waiting) or not is_last

    def _end_group(self) -> None:
        self._is_urgent.set()
        self._has_any.set()


class GroupCommit:
    """The only writer of a connection, which it closes at the end."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        on_trouble: Callable[[str | None], None],
        *,
        may_lose: bool = False,
        guard: Change | None = None,
    ) -> None:
        """Start the writer.

        Args:
            connection: The connection to write to.
            on_trouble: Called in the writer's thread with a message when the disk is full, and with
                None when it has recovered.
            may_lose: Whether to drop changes while the disk is full.
            guard: A query that returns a row as long as this process may write; it runs in each
                transaction.
        """
        self._guard = guard
        self._connection, self._on_trouble, self._may_lose = connection, on_trouble, may_lose
        self._changes: Groups[Change] = Groups(GROUP_S, GROUP_CHANGES)
        self._group: list[Change] = []
        self._gives_up = False
        self._broken: BaseException | None = None
        self.added = self.committed = 0
        self._added_bytes = self._committed_bytes = 0
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        """Number of changes that are not committed yet."""
        return self.added - self.committed

    @property
    def backlog_bytes(self) -> int:
        """Bytes of these changes, as far as they are encoded."""
        return self._added_bytes - self._committed_bytes

    def add(self, statement: str, *parameters: Any) -> None:
        """Add a change.

        Raises sqlite3.Error: An earlier change failed, other than by a full disk.
        """
        self.check()
        self.added += 1
        self._added_bytes += _size_bytes(parameters)
        self._changes.put((statement, parameters))

    def settle(self) -> None:
        """Block until all changes added so far are committed.

        Raises sqlite3.Error: A change failed, other than by a full disk.
        """
        settled = threading.Event()
        self._changes.hurry(settled)
        while not settled.wait(GROUP_S):
            if not self._thread.is_alive():
                break
        self.check()

    def check(self) -> None:
        """Check that the writer works.

        Raises sqlite3.Error: A change failed, other than by a full disk. Nothing more is written.
        """
        if self._broken is not None:
            raise self._broken

    def close(self, *, give_up: bool = False) -> None:
        """Commit the added changes, and close. `give_up`: drop the rest if the disk is full."""
        self._gives_up = give_up
        self._changes.close()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        goes_on = True
        try:
            while goes_on:
                self._group, settled, goes_on = self._changes.next_group()
                self._commit_at_last()
                for each in settled:
                    each.set()
        except BaseException as error:  # noqa: BLE001 - told to whoever adds next
            self._broken = error

    def _commit_at_last(self) -> None:
        is_told = False
        while self._group:
            try:
                self._commit()
            except sqlite3.OperationalError as error:
                is_full = (error.sqlite_errorcode & 0xFF) in _NO_ROOM
                if not is_full or (self._gives_up and not self._may_lose):
                    raise
                if not is_told:
                    self._on_trouble(str(error))
                is_told = True
                if self._may_lose:
                    self._count_group()
                else:
                    time.sleep(RETRY_S)
        if is_told and not self._may_lose:
            self._on_trouble(None)

    def _commit(self) -> None:
        with transaction(self._connection):
            if self._guard is not None and not self._connection.execute(*self._guard).fetchone():
                raise sqlite3.IntegrityError("another process writes there now")
            for statement, parameters in self._group:
                self._connection.execute(statement, parameters)
        self._count_group()

    def _count_group(self) -> None:
        self.committed += len(self._group)
        self._committed_bytes += sum(_size_bytes(parameters) for _, parameters in self._group)
        self._group = []


def _size_bytes(parameters: tuple[Any, ...]) -> int:
    return sum(len(each) for each in parameters if isinstance(each, bytes))
