"""What a log leaves open where its process died: ended as far as a reader is concerned."""

from collections.abc import Iterable, Iterator

from kairos.core.events import (
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

LOST = "lost_at_restart"  # why such a call failed


def closed(records: Iterable[Record]) -> Iterator[Record]:
    """The same; but where the process started again, calls and instances that nobody knows any more
    end first: at the last instant before it of which the log says anything."""
    calls: dict[str, None] = {}  # in flight, in order of arrival
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
