"""Open calls of all workers, and what a restarted decider must know of each."""

from collections.abc import Iterator

import msgspec

from kairos.cluster.workers.messages import Engines
from kairos.core import (
    Arrived,
    Bounced,
    Cancelled,
    Command,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    PrefillFailed,
    Record,
    Refuse,
    Tick,
)


class Entry(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Entry of the journal: a record, and the worker and number of the fact it decides on."""

    worker: str = ""
    number: int = 0  # of the fact
    turn: int = 0  # of the call that waits from then on
    record: Record | None = None
    engines: Engines | None = None  # which there are from here on


class OpenCall(msgspec.Struct):
    """A call that has arrived and not ended."""

    worker: str
    turn: int
    dispatch: Dispatch | None = None  # None: it waits
    entries: list[Entry] = msgspec.field(default_factory=list)  # enough to replay its course
    tenant: str = ""


class WorkerCalls:
    """State that follows the journal, both live and when it is read back."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}  # by worker, of its last fact here
        self.engines = Engines()
        self._calls: dict[str, OpenCall] = {}  # in order of arrival

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._calls

    def get(self, request_id: str) -> OpenCall | None:
        return self._calls.get(request_id)

    def of(self, worker: str) -> dict[str, OpenCall]:
        return {name: each for name, each in self._calls.items() if each.worker == worker}

    def workers(self) -> set[str]:
        return {each.worker for each in self._calls.values()}

    def running(self, instance_id: str) -> int:
        dispatches = (each.dispatch for each in self._calls.values())
        return sum(each is not None and each.instance_id == instance_id for each in dispatches)

    def follow(self, entry: Entry) -> list[tuple[OpenCall, Command]]:
        """Apply an entry, and return its commands with the calls that they are about."""
        if entry.worker:
            self.numbers[entry.worker] = max(entry.number, self.numbers.get(entry.worker, 0))
        if entry.engines is not None:
            self.engines = entry.engines
        return [] if entry.record is None else self._follow(entry, entry.record)

    def forget(self, worker: str) -> None:
        """Forget a worker that will not come back, and has no calls left."""
        self.numbers.pop(worker, None)

    def carried(self) -> Iterator[Entry]:
        """Yield entries that a new file of the journal starts with: they restore all open calls."""
        yield Entry(engines=self.engines)
        for worker, number in self.numbers.items():
            yield Entry(worker, number)
        yield from self.course()

    def course(self) -> list[Entry]:
        """Return the records of the open calls, in order."""
        entries = [entry for each in self._calls.values() for entry in each.entries]
        return sorted(entries, key=_told_at)

    def _follow(self, entry: Entry, record: Record) -> list[tuple[OpenCall, Command]]:
        event = record.event
        match event:
            case Arrived():
                call = OpenCall(entry.worker, entry.turn, tenant=event.request.tenant)
                self._calls.setdefault(event.request.id, call).entries.append(_alone(entry))
            case FirstToken() | PrefillFailed() | Bounced():
                if (open_call := self._calls.get(event.request_id)) is not None:
                    open_call.entries.append(_alone(entry))
                    if isinstance(event, Bounced):
                        open_call.dispatch, open_call.turn = None, entry.turn
            case Finished() | Failed() | Cancelled():
                self._calls.pop(event.request_id, None)
        decided: list[tuple[OpenCall, Command]] = []
        for command in record.commands:
            if (open_call := self._calls.get(command.request_id)) is None:
                continue
            decided.append((open_call, command))
            if isinstance(command, Refuse):
                del self._calls[command.request_id]
            else:
                open_call.dispatch = command
                open_call.entries.append(Entry(record=Record(record.at, Tick(), (command,))))
        return decided


def _alone(entry: Entry) -> Entry:
    """Return the entry without its commands, which are kept with the calls that they are about."""
    record = entry.record
    assert record is not None
    if not record.commands:
        return entry
    return msgspec.structs.replace(entry, record=Record(record.at, record.event))


def _told_at(entry: Entry) -> int:
    return 0 if entry.record is None else entry.record.at
