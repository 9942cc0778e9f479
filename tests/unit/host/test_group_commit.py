"""Groups of changes, as the thread that writes them takes them."""

import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from kairos.host import Groups
from tests.support.examples import examples

PUT, SETTLE = "put", "settle"


def taken(groups, written, sizes):
    """Write groups until the last; note for each that is settled what was written before."""
    goes_on = True
    while goes_on:
        group, settled, goes_on = groups.next_group()
        written += group
        sizes.append(len(group))
        for each in settled:
            each.written = len(written)
            each.set()


@examples(60)
@given(st.lists(st.sampled_from([PUT, PUT, PUT, SETTLE]), max_size=60), st.integers(1, 8))
def test_all_changes_are_written_in_their_order_in_groups_of_at_most_so_many(steps, most):
    groups, written, sizes, settled, given_ = Groups(0.001, most), [], [], [], 0
    writer = threading.Thread(target=taken, args=(groups, written, sizes))
    writer.start()
    for step in steps:
        if step == PUT:
            groups.put(given_)
            given_ += 1
        else:
            event = threading.Event()
            settled.append((event, given_))
            groups.hurry(event)
    groups.close()
    writer.join(60)
    assert not writer.is_alive()
    assert written == list(range(given_))
    assert max(sizes) <= most
    for event, before in settled:
        assert event.is_set()
        assert event.written >= before


def test_a_writer_sleeps_while_a_group_gathers():
    groups, written, sizes = Groups(0.2, 1_000), [], []
    writer = threading.Thread(target=taken, args=(groups, written, sizes))
    writer.start()
    began_s = time.monotonic()
    for n in range(50):
        groups.put(n)
        time.sleep(0.001)
    event = threading.Event()
    groups.hurry(event)
    assert event.wait(60)
    took_s = time.monotonic() - began_s
    groups.close()
    writer.join(60)
    assert written == list(range(50))
    assert len(sizes) <= 3 + took_s / 0.2


def test_who_settles_or_has_a_whole_group_does_not_wait_for_its_time():
    groups, written, sizes = Groups(3600, 10), [], []
    writer = threading.Thread(target=taken, args=(groups, written, sizes))
    writer.start()
    for n in range(10):
        groups.put(n)
    event = threading.Event()
    groups.hurry(event)
    assert event.wait(60)
    groups.put(10)
    groups.close()
    writer.join(60)
    assert written == list(range(11))
