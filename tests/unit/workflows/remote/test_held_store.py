"""What stays with a processor is bounded: in all, of a run, and in time."""

import pytest

from kairos.core import InvalidRequest
from kairos.workflows import HeldStore
from kairos.workflows.remote.held_store import KEEP_S

A, B = ("acme", "run-a"), ("acme", "run-b")


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return HeldStore(40_000, clock)


def put(store, run, *ids, size=1_500):
    for each in ids:
        store.put(run, each, b"x" * size)


def there(store, run, *ids):
    return [each for each in ids if store.get(run, each) is not None]


def test_a_value_is_its_runs_own_and_its_tenants(store):
    put(store, A, "one")
    assert store.get(A, "one") == b"x" * 1_500
    assert store.get(B, "one") is None
    assert store.get(("bolt", "run-a"), "one") is None


def test_a_run_has_a_quarter_and_its_own_oldest_makes_room(store):
    put(store, B, "other")
    put(store, A, *"12345")
    assert there(store, A, "1") == ["1"]  # used again
    put(store, A, "6")
    assert there(store, A, *"123456") == ["1", "3", "4", "5", "6"]
    assert there(store, B, "other") == ["other"]
    assert store.figures.evicted == 1
    with pytest.raises(InvalidRequest, match="hold-mb"):
        put(store, A, "large", size=10_000)


def test_of_all_the_longest_unused_makes_room(store):
    for number in range(5):
        put(store, ("acme", f"run-{number}"), *"1234")
    assert store.held_bytes == 40_000
    put(store, B, "new")
    assert there(store, ("acme", "run-0"), *"1234") == ["2", "3", "4"]
    assert store.held_bytes == 40_000


def test_what_nobody_uses_is_gone_in_time(store, clock):
    put(store, A, "1", "2")
    clock.now_s = KEEP_S - 1
    assert there(store, A, "2") == ["2"]
    clock.now_s = KEEP_S + 1
    store.forget_old()
    assert len(store) == 1
    assert there(store, A, "1", "2") == ["2"]


def test_what_a_run_is_through_with_is_dropped(store):
    put(store, A, "1", "2", "3")
    put(store, B, "1")
    store.drop(A, ["2", "unknown"])
    assert there(store, A, "1", "2", "3") == ["1", "3"]
    store.drop_run(A)
    assert (len(store), store.held_bytes) == (1, 2_000)
    store.drop_run(A)
    store.drop_run(B)
    assert (len(store), store.held_bytes, store._bytes_of, store._runs) == (0, 0, {}, {})
