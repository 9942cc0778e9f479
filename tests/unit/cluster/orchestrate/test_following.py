"""What an orchestrator commits is enough for another to know the same, and to learn the rest."""

import logging
from collections import Counter
from functools import cache

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.cluster import POOL_HEADER, TAKEOVER_HEADER, ReceivedMessage
from kairos.cluster.orchestrate.following import (
    METADATA_BYTES,
    CommittedProgress,
    Following,
    Records,
    read_progress,
)
from kairos.cluster.pool.messages import EPOCH
from kairos.core import (
    SECOND,
    Arrived,
    Dispatch,
    Finished,
    ProfilesLearnt,
    Record,
    Topic,
    WorkflowEnded,
)
from kairos.observe import workflow_snapshot, workflow_view
from tests.support.examples import examples
from tests.support.simulate import build

NOTHING = ProfilesLearnt()
IDLE_US = 3 * SECOND


def message(offset, record, *, pool="default", epoch=0, at=None):
    value = record if isinstance(record, bytes) else msgspec.json.encode(record)
    headers = {POOL_HEADER: pool, EPOCH: str(epoch)}
    at = getattr(record, "at", 0) if at is None else at
    return ReceivedMessage(Topic.EVENTS, 0, offset, at, "key", value, headers)


def messages(*records):
    return [message(n, each) for n, each in enumerate(records, start=1)]


def takeover(offset, pool="default"):
    return ReceivedMessage(
        Topic.EVENTS, 0, offset, 0, pool, None, {POOL_HEADER: pool, TAKEOVER_HEADER: "somebody"}
    )


@cache
def log_of(seed):
    """A takeover, and what was decided after it; some workflows are said to have ended."""
    log, _ = build.simulate(seed, requests=150)
    last = {}
    for n, record in enumerate(log):
        if isinstance(record.event, Arrived):
            last[record.event.request.workflow_id] = n
    ended = {n: WorkflowEnded("default", name) for name, n in last.items() if n % 2}
    records = []
    for n, record in enumerate(log):
        if not isinstance(record.event, ProfilesLearnt):
            records.append(record)
        if n in ended:
            records.append(Record(record.at, ended[n]))
    return [takeover(0), *(message(n, each) for n, each in enumerate(records, start=1))]


def follow(messages, since=None, committed=-1001):
    followed = Following(NOTHING, committed, since, idle_us=IDLE_US)
    for each in messages:
        followed.take(each)
    return followed


def taught(workflows):
    """Who they are, and how many calls of each were seen."""
    return Counter((each.key, len(each.calls), each.is_whole) for each in workflows)


def seen(followed):
    return {
        each.key: msgspec.to_builtins(workflow_view(workflow_snapshot(each, 10**9), 0, 100))
        for each in followed.orchestrator._open.all()
    }


@pytest.mark.parametrize("seed", range(3))
@given(data=st.data())
@examples(25)
def test_whoever_reads_on_from_what_was_committed_knows_the_same_and_learns_the_rest_once(
    seed, data
):
    log = log_of(seed)
    at = data.draw(st.integers(1, len(log)), label="when it is committed")
    until = data.draw(st.integers(at, len(log)), label="when the other has read all there is")
    first = follow(log[:at])
    learnt = taught(first.orchestrator.take_ended())
    offset, progress = first.progress()
    assert read_progress(progress.encoded()) == progress

    second = follow(log[offset:until], progress, offset)
    second.caught_up()
    whole = follow(log[:until])

    assert seen(second) == seen(whole)
    assert learnt + taught(second.orchestrator.take_ended()) == taught(
        whole.orchestrator.take_ended()
    )
    assert second.progress()[0] == whole.progress()[0]


def call(name, at, workflow_id):
    request = build.request(name, at=at, workflow_id=workflow_id)
    return [Record(at, Arrived(request), (Dispatch(name, "a"),)), Record(at + 1, Finished(name))]


def test_it_is_read_again_from_the_oldest_workflow_that_is_open():
    ended = Record(9, WorkflowEnded("default", "v"))
    told = [*call("r", 1, "v"), *call("s", 3, "w"), ended, *call("t", 10, "v"), *call("u", 12, "w")]
    log = messages(*told)

    offsets = [follow(log[:n]).progress()[0] for n in range(1, len(log) + 1)]

    assert offsets == [1, 1, 1, 1, 3, 3, 3, 3, 3]
    ended = message(10, Record(20, WorkflowEnded("default", "w")))
    assert follow([*log, ended]).progress()[0] == 6  # of "v", which goes on after its end


def test_silence_that_was_seen_is_not_learnt_from_again():
    in_flight, _ = call("long", 1, "v")
    log = messages(in_flight, *call("r", 1, "w"))
    first = follow(log)
    first.silent(2 * IDLE_US)
    assert taught(first.orchestrator.take_ended()) == {(("default", "w"), 1, True): 1}
    offset, progress = first.progress()
    assert (offset, progress.learnt) == (1, 4)

    second = follow(log, progress, offset)
    second.caught_up()
    second.silent(IDLE_US)

    assert second.orchestrator.take_ended() == []
    assert len(second.orchestrator) == 1


def test_nothing_is_learnt_while_it_is_read_again():
    in_flight, _ = call("long", 1, "v")
    ended = [Record(n, WorkflowEnded("default", f"w{n}")) for n in range(1, 9)]
    told = [each for n, end in enumerate(ended, 1) for each in (*call(f"r{n}", n, f"w{n}"), end)]
    log = messages(in_flight, *told)
    first = follow(log)
    assert first.orchestrator.to_learn == 8
    offset, progress = first.progress()

    for until in range(1, len(log)):
        second = follow(log[:until], progress, offset)
        assert second.orchestrator.to_learn == 0
        assert second.progress() is None


def test_a_workflow_that_began_before_its_first_call_is_whole_when_it_is_read_again():
    request = build.request("s", at=100, workflow_id="w", workflow_started_at=50)
    arrived = Record(100, Arrived(request), (Dispatch("s", "a"),))
    log = messages(*call("r", 1, "v"), Record(9, WorkflowEnded("default", "v")), arrived)
    first = follow(log)
    offset, progress = first.progress()
    assert offset == 4

    second = follow(log[3:], progress, offset)

    assert second.orchestrator.open_workflow(("default", "w")).is_whole


def test_silence_is_counted_from_the_newest_fact():
    followed = follow(messages(*call("r", 1, "w")))
    followed.silent(IDLE_US - 10)
    followed.take(message(3, Record(5, WorkflowEnded("default", "other"))))
    followed.silent(IDLE_US - 10)
    assert len(followed.orchestrator) == 1

    followed.silent(10)

    assert len(followed.orchestrator) == 0


def test_a_workflow_that_began_before_what_kafka_kept_is_not_learnt_from(caplog):
    began = Record(1, Arrived(build.request("r", at=1, workflow_id="w")), (Dispatch("r", "a"),))
    later = Record(
        9, Arrived(build.request("s", at=9, workflow_id="w", workflow_started_at=1)),
        (Dispatch("s", "a"),),
    )  # fmt: skip
    offset, progress = follow([message(5, began)]).progress()
    lost = [message(8, later), message(9, Record(10, Finished("s")))]
    lost.append(message(10, Record(11, WorkflowEnded("default", "w"))))

    with caplog.at_level(logging.WARNING):
        second = follow(lost, progress, offset)

    [workflow] = second.orchestrator.take_ended()
    assert not workflow.is_whole
    assert "are lost to learning" in caplog.text


def test_a_topic_that_was_made_anew_is_followed_from_its_beginning():
    progress = CommittedProgress(learnt=1_000, silent_until=0, began_at=1, epochs={"default": 900})
    arrived = Record(1, Arrived(build.request("r", at=1)), (Dispatch("r", "a"),))
    told = [takeover(0), message(1, arrived), message(2, Record(2, Finished("r")))]
    told.append(message(3, Record(3, WorkflowEnded("default", "w-r"))))

    followed = follow(told, progress, 1_000)

    assert len(followed.orchestrator.take_ended()) == 1


def test_what_a_balancer_said_after_another_took_over_does_not_count():
    records = Records({})
    fact = Record(1, Finished("r"))
    told = [takeover(0), message(1, fact), takeover(2), message(3, fact), message(4, fact, epoch=2)]
    told += [message(5, fact, pool="other", epoch=1), takeover(6, "other"), message(7, fact)]

    assert [n for n, each in enumerate(told) if records.read(each)] == [1, 4]


def test_an_epoch_from_before_all_that_is_read_is_the_one_that_was_committed():
    records, fact = Records({"default": 5}), Record(1, Finished("r"))
    told = [message(7, fact, epoch=5), message(8, fact, epoch=3), message(9, fact, epoch=5)]

    assert [each.offset for each in told if records.read(each)] == [7, 9]


@pytest.mark.parametrize("forged", [7, 8, 9, 10**6, 10**17])
def test_no_number_makes_a_balancer_deaf(forged):
    records, fact = Records({}), Record(1, Finished("r"))
    told = [message(7, fact, epoch=5), message(8, fact, epoch=forged), message(9, fact, epoch=5)]

    assert [each.offset for each in told if records.read(each)] == [7, 9]


def test_pools_that_were_announced_and_never_heard_of_make_room():
    records, fact = Records({}), Record(1, Finished("r"))
    records.read(takeover(0))
    assert records.read(message(1, fact)) is not None
    for offset in range(2, 2_002):
        records.read(takeover(offset, f"forged-{offset}"))
    records.read(takeover(2_002, "new"))
    assert records.read(message(2_003, fact, pool="new", epoch=2_002)) is not None
    assert records.read(message(2_004, fact)) is not None


def test_who_reads_from_the_middle_knows_which_balancer_had_been_replaced():
    records = Records({})
    for each in (takeover(0), takeover(2)):
        records.read(each)
    fact = Record(1, Finished("r"))

    assert Records(records.epochs(2)).read(message(1, fact)) is not None
    assert Records(records.epochs(3)).read(message(3, fact)) is None


@pytest.mark.parametrize(
    "hostile",
    [
        message(1, b"no json"),
        message(1, b"[" * 10_000),
        message(1, b'{"at":1,"event":{"type":"Unheard"}}'),
        message(1, Record(10**17, Finished("r")), at=10**15),
        message(1, Record(1, Finished("r")), epoch="x"),
        message(1, Record(1, Finished("r")), epoch=1),
        ReceivedMessage(Topic.EVENTS, 0, 1, 1, "", None, {}),
        ReceivedMessage(
            Topic.EVENTS,
            0,
            1,
            1,
            "",
            msgspec.json.encode(Record(1, Finished("r"))),
            {POOL_HEADER: "p"},
        ),
    ],
)
def test_what_is_no_record_is_left_out(hostile):
    assert Records({}).read(hostile) is None


def test_committed_metadata_of_others_is_no_use():
    assert read_progress("") is None
    assert read_progress("learnt") is None
    assert read_progress('{"learnt":"x"}') is None


def test_metadata_stays_within_what_kafka_takes():
    epochs = {f"pool-{n}": n for n in range(1_000)}
    progress = CommittedProgress(learnt=1, silent_until=2, began_at=3, epochs=epochs)

    assert len(progress.encoded()) <= METADATA_BYTES
    assert read_progress(progress.encoded()).learnt == 1
