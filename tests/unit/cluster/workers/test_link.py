"""Frames over a local stream, and the journal that is made of them."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.cluster.workers import journal as journals
from kairos.cluster.workers.journal import Journal
from kairos.cluster.workers.link import FRAME_BYTES, BrokenFrame, Frames, framed
from kairos.cluster.workers.messages import Engines
from kairos.cluster.workers.worker_calls import Entry, WorkerCalls
from kairos.core import (
    Arrived,
    Bounced,
    Dispatch,
    Finished,
    FirstToken,
    PrefillFailed,
    Record,
    Request,
    Tick,
)


@given(st.lists(st.binary(max_size=50)), st.lists(st.integers(1, 20), min_size=1))
def test_frames_are_the_same_however_the_stream_is_cut(payloads, cuts):
    stream, frames, read, number = b"".join(map(framed, payloads)), Frames(), [], 0
    while stream:
        size = cuts[number % len(cuts)]
        read += frames.feed(stream[:size])
        stream, number = stream[size:], number + 1
    assert read == payloads


def test_a_length_over_the_limit_is_refused_before_anything_is_kept():
    with pytest.raises(BrokenFrame):
        list(Frames().feed((FRAME_BYTES + 1).to_bytes(4, "big")))


def test_what_is_too_long_is_not_sent():
    with pytest.raises(BrokenFrame):
        framed(bytes(FRAME_BYTES + 1))


@pytest.fixture
def files():
    made = journals.create()
    yield made
    for each in made:
        os.close(each)


def arrival(name, at):
    request = Request(
        id=name, workflow_id=name, workflow_started_at=at, arrived_at=at,
        prompt_tokens=10, completion_tokens=10,
    )  # fmt: skip
    return Entry("w", at, at, Record(at, Arrived(request)))


def end(name, at):
    return Entry("w", at, 0, Record(at, Finished(name)))


def read(files):
    return list(Journal(files).read())


def follow(entries):
    opened = WorkerCalls()
    for entry in entries:
        opened.follow(entry)
    return opened


def test_what_one_process_wrote_the_next_one_reads(files):
    journal, entries = Journal(files), [arrival("a", 1), arrival("b", 2), end("a", 3)]
    assert list(journal.read()) == []
    for entry in entries:
        journal.add(entry)
        journal.write(lambda: ())
    assert read(files) == entries
    assert read(files) == entries


def test_what_was_not_written_is_not_there(files):
    journal = Journal(files)
    list(journal.read())
    journal.add(arrival("a", 1))
    assert read(files) == []


def test_an_entry_that_was_cut_short_is_left_out_and_the_next_one_follows_what_was_whole(files):
    journal = Journal(files)
    list(journal.read())
    for entry in (arrival("a", 1), arrival("b", 2)):
        journal.add(entry)
    journal.write(lambda: ())
    newer = max(files, key=lambda file: os.fstat(file).st_size)
    os.ftruncate(newer, os.fstat(newer).st_size - 3)
    successor = Journal(files)
    assert list(successor.read()) == [arrival("a", 1)]
    successor.add(arrival("c", 3))
    successor.write(lambda: ())
    assert read(files) == [arrival("a", 1), arrival("c", 3)]


def played(files, number, segment_bytes=2_000):
    """Calls of which every tenth stays open."""
    journal, opened = Journal(files, segment_bytes=segment_bytes), WorkerCalls()
    list(journal.read())
    for at in range(1, number):
        entries = [arrival(f"call-{at}", at)]
        if at % 10:
            entries.append(end(f"call-{at}", at))
        for entry in entries:
            opened.follow(entry)
            journal.add(entry)
        journal.write(opened.carried)
    return opened


def test_a_bounded_journal_knows_every_open_call_in_order(files):
    opened = played(files, 500)
    known = follow(read(files))
    assert known.course() == opened.course()
    assert known.numbers == opened.numbers
    carried = sum(len(framed(journals._encode(each))) for each in opened.carried())
    assert sum(os.fstat(file).st_size for file in files) < 2 * (carried + 3_000)


def test_a_crash_while_a_file_is_begun_anew_loses_nothing(files):
    opened = played(files, 200)
    newer, older = sorted(files, key=journals._generation, reverse=True)
    before = read(files)
    # As if the newer one had got no further than its header.
    journal = Journal(files, segment_bytes=1)
    list(journal.read())
    journal.add(arrival("last", 1_000))
    journal.write(lambda: (opened.follow(arrival("last", 1_000)), opened.carried())[1])
    torn = max(files, key=journals._generation)
    assert torn == older
    os.ftruncate(torn, 20)
    known = follow(read(files))
    assert known.course() == opened.course()
    assert "last" in known
    assert len(before) > 0
    assert newer != torn


def test_a_call_is_known_with_its_dispatch_its_turn_and_its_engines():
    opened, dispatch = WorkerCalls(), Dispatch("a", "i")
    engines = Engines((), ("x",))
    opened.follow(Entry(engines=engines))
    opened.follow(arrival("a", 1))
    assert opened.follow(Entry(record=Record(2, Tick(), (dispatch,))))[0][1] == dispatch
    opened.follow(Entry("w", 3, 0, Record(3, FirstToken("a"))))
    opened.follow(Entry("w", 3, 0, Record(3, PrefillFailed("a"))))
    assert opened.get("a").dispatch == dispatch
    assert PrefillFailed("a") in [each.record.event for each in opened.course()]
    assert (opened.running("i"), opened.running("j")) == (1, 0)
    opened.follow(Entry("w", 4, 9, Record(4, Bounced("a", "broke"))))
    assert (opened.get("a").dispatch, opened.get("a").turn) == (None, 9)
    again = follow(opened.carried())
    assert again.course() == opened.course()
    assert (again.get("a").turn, again.engines, again.numbers) == (9, engines, {"w": 4})
