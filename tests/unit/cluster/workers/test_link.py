"""Frames over a local stream, and the journal that is made of them."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.cluster.decisions.messages import LoggedDecision
from kairos.cluster.decisions.open_calls import OpenCallTable
from kairos.cluster.workers import journal as journals
from kairos.cluster.workers.journal import Entry, Journal
from kairos.cluster.workers.link import FRAME_BYTES, BrokenFrame, Frames, framed
from kairos.core import Arrived, Finished, Record, Request


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
    return Entry(LoggedDecision(Record(at, Arrived(request)), "w", cause=at, turn=at))


def end(name, at):
    return Entry(LoggedDecision(Record(at, Finished(name)), "w", cause=at))


def read(files):
    return list(Journal(files).read())


def follow(entries):
    opened = OpenCallTable()
    for entry in entries:
        opened.apply(entry.decision)
    return opened


def carried(opened):
    return [Entry(each) for each in opened.course()]


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
    journal, opened = Journal(files, segment_bytes=segment_bytes), OpenCallTable()
    list(journal.read())
    for at in range(1, number):
        entries = [arrival(f"call-{at}", at)]
        if at % 10:
            entries.append(end(f"call-{at}", at))
        for entry in entries:
            opened.apply(entry.decision)
            journal.add(entry)
        journal.write(lambda: carried(opened))
    return opened


def test_a_bounded_journal_knows_every_open_call_in_order(files):
    opened = played(files, 500)
    known = follow(read(files))
    assert known.course() == opened.course()
    matter = sum(len(framed(journals._encode(each))) for each in carried(opened))
    assert sum(os.fstat(file).st_size for file in files) < 2 * (matter + 3_000)


def test_a_crash_while_a_file_is_begun_anew_loses_nothing(files):
    opened = played(files, 200)
    newer, older = sorted(files, key=journals._generation, reverse=True)
    before = read(files)
    # As if the newer one had got no further than its header.
    journal = Journal(files, segment_bytes=1)
    list(journal.read())
    last = arrival("last", 1_000)
    opened.apply(last.decision)
    journal.add(last)
    journal.write(lambda: carried(opened))
    torn = max(files, key=journals._generation)
    assert torn == older
    os.ftruncate(torn, 20)
    known = follow(read(files))
    assert known.course() == opened.course()
    assert "last" in known
    assert len(before) > 0
    assert newer != torn
