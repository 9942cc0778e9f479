"""Closing facts for calls and instances that a log leaves open where its process died."""

from collections.abc import Iterable, Iterator

from kairos.core import (
    Arrived,
    Cancelled,
    Failed,
    Finished,
    InstanceJoined,
    InstanceLeft,
    Record,
    Refuse,
    Started,
)

LOST = "lost_at_restart"  # reason of failure of such a call


def closed(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records, with closing facts where the process restarted.

    At each `Started`, calls and instances that it does not list end first, at the time of the last
    fact before it.
    """
    calls: dict[str, None] = {}  # calls in flight, in order of arrival
    instances: dict[str, None] = {}
    heard_at = 0
    for record in records:
        event = record.event
        if type(event) is Started:
            lost, gone = calls.keys() - set(event.calls), instances.keys() - set(event.instances)
            at = min(heard_at, record.at)
            yield from (Record(at, Failed(each, LOST)) for each in calls if each in lost)
            yield from (Record(at, InstanceLeft(each)) for each in instances if each in gone)
            calls = {each: None for each in calls if each not in lost}
            instances = {each: None for each in instances if each not in gone}
        _follow(record, calls, instances)
        heard_at = record.at
        yield record


def _follow(record: Record, calls: dict[str, None], instances: dict[str, None]) -> None:
    event = record.event
    if type(event) is Arrived:
        calls[event.request.id] = None
    elif type(event) is Finished or type(event) is Failed or type(event) is Cancelled:
        calls.pop(event.request_id, None)
    elif type(event) is InstanceJoined:
        instances[event.instance.id] = None
    elif type(event) is InstanceLeft:
        instances.pop(event.instance_id, None)
    for command in record.commands:
        if type(command) is Refuse:
            calls.pop(command.request_id, None)
