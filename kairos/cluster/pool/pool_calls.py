"""Open calls of a pool: the performer of each, and the message that it came with."""

import msgspec

from kairos.cluster.pool.bus_call import BusCall
from kairos.cluster.pool.messages import RecalledRecord
from kairos.core import (
    Arrived,
    Bounced,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    Record,
    Refuse,
    Request,
)


class Open(msgspec.Struct):
    """A call that has arrived and not ended."""

    request: Request
    performer: str
    offset: int | None  # of the message with which it arrived; done when it has ended
    logged_at: int  # its arrival
    instance_id: str | None = None  # where it runs; None: it waits
    call: BusCall | None = None  # if it came over the bus
    to_redo: bool = False  # cancelled by an earlier balancer that did not repeat it
    turn: int = 0  # see `Told`
    refused: Refuse | None = None  # its performer may not know of the refusal yet


class PoolCalls:
    """Open calls by request id, updated from this and earlier balancers' records."""

    def __init__(self) -> None:
        self._calls: dict[str, Open] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._calls

    def get(self, request_id: str) -> Open | None:
        return self._calls.get(request_id)

    def add(self, each: Open) -> None:
        self._calls[each.request.id] = each

    def remove(self, request_id: str) -> Open | None:
        return self._calls.pop(request_id, None)

    def all(self) -> list[Open]:
        return list(self._calls.values())

    def performed_by(self, performers: set[str]) -> list[Open]:
        return [each for each in self._calls.values() if each.performer in performers]

    def oldest_at(self, default: int) -> int:
        """Return when the oldest open call arrived."""
        return min((each.logged_at for each in self._calls.values()), default=default)

    def recall(self, decided: RecalledRecord) -> None:
        """Apply a record of an earlier balancer."""
        record, turn = decided.record, decided.turn
        event = record.event
        if isinstance(event, Arrived):
            performer, offset = decided.performer, decided.cause
            self.add(Open(event.request, performer, offset, record.at, turn=turn))
        elif isinstance(event, Bounced) and (back := self.get(event.request_id)) is not None:
            back.turn = turn
        for each in self.follow(record, redo=decided.redo):
            if each.refused is not None:
                self.add(each)

    def follow(self, record: Record, *, redo: bool) -> list[Open]:
        """Apply a record, and return the calls that have ended with it.

        A refused call that came over the bus ends only once its answer is committed.
        """
        event, ended = record.event, []
        if isinstance(event, Finished | Failed | Cancelled):
            if not redo:
                ended.append(self.remove(event.request_id))
            elif (again := self.get(event.request_id)) is not None:
                again.to_redo = True
        if isinstance(event, Bounced) and (back := self.get(event.request_id)) is not None:
            back.instance_id = None
        for command in record.commands:
            if (decided := self.get(command.request_id)) is None:
                continue
            if isinstance(command, Dispatch):
                decided.instance_id = command.instance_id
                continue
            decided.refused = command
            if decided.call is None:
                ended.append(self.remove(command.request_id))
        return [each for each in ended if each is not None]
