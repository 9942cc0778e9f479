"""Writes to SQLite in groups, in a thread of its own, so that nobody waits for the disk.

What is added is on the disk within 50 ms, or once 256 changes have come, whichever is first. They
are committed in the order in which they were added: what is there after a crash is all up to some
change, and nothing after it.

While the disk is full a group is tried again every second, which is told. Who adds looks at
`backlog` and `backlog_bytes`, and adds no more while they grow. Where what is written may as well
be lost (a cache), the group is dropped instead.
"""

import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

GROUP_S = 0.05
GROUP_CHANGES = 256
RETRY_S = 1.0
# Whatever else the device says of itself is an I/O error, too.
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)

Change = tuple[str, tuple[Any, ...]]  # a statement and its parameters


class GroupCommit:
    """The one writer of a connection, which it closes in the end."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        on_trouble: Callable[[str | None], None],
        *,
        may_lose: bool = False,
        guard: Change | None = None,
    ) -> None:
        """
        Args:
            on_trouble: is called in the writer's thread with a line when the disk takes nothing,
                and with None when it does again.
            may_lose: drop what a full disk does not take.
            guard: a query that finds something for as long as this may write; it is asked in each
                transaction.
        """
        self._guard = guard
        self._connection, self._on_trouble, self._may_lose = connection, on_trouble, may_lose
        self._changes: queue.SimpleQueue[Change | threading.Event | None] = queue.SimpleQueue()
        self._group: list[Change] = []
        self._gives_up = False
        self._broken: BaseException | None = None
        self.added = self.committed = 0
        self._added_bytes = self._committed_bytes = 0
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        """Changes that are not on the disk yet."""
        return self.added - self.committed

    @property
    def backlog_bytes(self) -> int:
        """What these hold, as far as it is encoded."""
        return self._added_bytes - self._committed_bytes

    def add(self, statement: str, *parameters: Any) -> None:
        """Raises sqlite3.Error: what an earlier change met, other than a disk without room."""
        self.check()
        self.added += 1
        self._added_bytes += _size_bytes(parameters)
        self._changes.put((statement, parameters))

    def settle(self) -> None:
        """Return once all that was added so far is on the disk; blocks.

        Raises:
            sqlite3.Error: what a change met, other than a disk without room.
        """
        settled = threading.Event()
        self._changes.put(settled)
        while not settled.wait(GROUP_S):
            if not self._thread.is_alive():
                break
        self.check()

    def check(self) -> None:
        """Raises sqlite3.Error: what a change met, other than a disk without room. Nothing more is
        written."""
        if self._broken is not None:
            raise self._broken

    def close(self, *, give_up: bool = False) -> None:
        """Commit what was added, and end. `give_up`: drop what a full disk does not take, and all
        that was added after it."""
        self._gives_up = give_up
        self._changes.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        try:
            while self._collect_and_commit():
                pass
        except BaseException as error:  # noqa: BLE001 - told to whoever adds next
            self._broken = error

    def _collect_and_commit(self) -> bool:
        """One group. Return whether there may be more."""
        waiting: list[threading.Event] = []
        goes_on, until = True, None
        while goes_on and len(self._group) < GROUP_CHANGES:
            try:
                rest_s = None if until is None else max(0.0, until - time.monotonic())
                each = self._changes.get(timeout=rest_s)
            except queue.Empty:
                break
            until = until or time.monotonic() + GROUP_S
            match each:
                case None:
                    goes_on = False
                case threading.Event():
                    waiting.append(each)
                    break
                case _:
                    self._group.append(each)
        self._commit_at_last()
        for event in waiting:
            event.set()
        return goes_on

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
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            if self._guard is not None and not self._connection.execute(*self._guard).fetchone():
                raise sqlite3.IntegrityError("somebody else writes there now")
            for statement, parameters in self._group:
                self._connection.execute(statement, parameters)
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:  # a full disk ends it by itself
                self._connection.execute("ROLLBACK")
            raise
        self._count_group()

    def _count_group(self) -> None:
        self.committed += len(self._group)
        self._committed_bytes += sum(_size_bytes(parameters) for _, parameters in self._group)
        self._group = []


def _size_bytes(parameters: tuple[Any, ...]) -> int:
    return sum(len(each) for each in parameters if isinstance(each, bytes))
