"""Which calls were forgotten, told from who makes progress."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SECOND, InstanceStatus, SeenCall, Stalls
from tests.support.simulate import build

LOOK_US = SECOND // 2


class Pool:
    """Two instances; a test says which calls are in flight, and lets time pass."""

    def __init__(self, instances=("a", "b"), *, tells=True, models=("m",)):
        self.stalls, self.at, self.tells = Stalls(), 0, tells
        self.keys = count(1)
        self.calls = {}
        self.waiting = dict.fromkeys(instances, 0)
        self.preemptions = dict.fromkeys(instances, 0)
        self.lost = set()  # keys: the engine does not have them
        self.streaming = set()  # keys of streams of which something comes all the time
        self.paused = set()
        for each in instances:
            self.stalls.add_instance(build.instance(each, models=models))

    def send(self, instance="a", *, tokens=100, streams=True, model="m"):
        key = next(self.keys)
        self.calls[key] = SeenCall(key, instance, model, tokens, self.at, streams, False, False)
        return key

    def begin(self, key):
        self.calls[key] = self.calls[key]._replace(has_begun=True, since=self.at)
        self.streaming.add(key)

    def end(self, key):
        del self.calls[key]
        self.streaming.discard(key)
        self.stalls.end_watch(key, self.at)

    def passes(self, seconds):
        """Time. Returns what was suspected, by how long it had lasted."""
        suspected = {}
        for _ in range(int(seconds * SECOND / LOOK_US)):
            self.at += LOOK_US
            for key in self.streaming - self.paused:
                self.calls[key] = self.calls[key]._replace(since=self.at)
            for key in self.paused:
                self.calls[key] = self.calls[key]._replace(is_paused=True)
            if self.tells and self.at % SECOND == 0:
                self.tell()
            for key in self.stalls.probe_calls(self.calls.values(), self.at):
                suspected.setdefault(key, self.at / SECOND)
        return suspected

    def tell(self):
        for name, waiting in self.waiting.items():
            here = [each for each in self.calls.values() if each.instance_id == name]
            has = len([each for each in here if each.key not in self.lost])
            status = InstanceStatus(
                name,
                running=max(0, has - waiting),
                waiting=waiting,
                preemptions=self.preemptions[name],
            )
            self.stalls.record_status(status, len(here), self.at)

    def learn(self, calls=200, **how):
        """So many that begin at once, and end."""
        for _ in range(calls // 20):
            sent = [self.send(name, **how) for name in self.waiting for _ in range(20)]
            assert self.passes(0.5) == {}
            for key in sent:
                if self.calls[key].streams:
                    self.begin(key)
            assert self.passes(0.5) == {}
            for key in sent:
                self.end(key)


@pytest.fixture
def pool():
    made = Pool()
    made.learn()
    return made


def test_nothing_is_suspected_as_long_as_nothing_is_known():
    pool = Pool()
    pool.send()
    pool.send(streams=False)
    assert pool.passes(600) == {}


def test_a_stream_that_does_not_begin_is_suspected_amid_others_that_go_on(pool):
    silent, other = pool.send(), pool.send()
    pool.begin(other)
    began = pool.at / SECOND
    suspected = pool.passes(20)
    assert set(suspected) == {silent}
    assert 2 <= suspected[silent] - began <= 6


def test_a_prompt_that_is_longer_may_take_longer(pool):
    short, long = pool.send("a"), pool.send("b", tokens=8000)
    began = pool.at / SECOND
    suspected = pool.passes(60)
    assert suspected[long] - began >= 2.5 * (suspected[short] - began)


@pytest.mark.parametrize("excuse", ["waiting", "preemptions"])
def test_while_something_waits_in_the_engine_or_is_preempted_no_stream_is_late(pool, excuse):
    key = pool.send()
    for n in range(60):
        getattr(pool, excuse)["a"] = 1 if excuse == "waiting" else n
        assert pool.passes(1) == {}
    getattr(pool, excuse)["a"] = 0 if excuse == "waiting" else 59
    assert set(pool.passes(20)) == {key}


def test_a_stream_that_the_engine_does_not_have_any_more_is_broken_off(pool):
    key, other = pool.send(), pool.send()
    pool.begin(key)
    pool.begin(other)
    pool.passes(3)
    pool.streaming.discard(key)
    pool.lost.add(key)
    since = pool.at / SECOND
    found = pool.passes(20)
    assert list(found) == [key]
    assert 5 <= found[key] - since <= 7


@pytest.mark.parametrize("why", ["slow client", "another silent stream"])
def test_not_where_the_engine_may_lack_another(pool, why):
    key, other = pool.send(), pool.send()
    pool.begin(key)
    pool.begin(other)
    pool.passes(3)
    pool.streaming.discard(key)
    pool.lost.add(other)  # its end waits here for its client, or was lost
    if why == "slow client":
        pool.paused.add(other)
    else:
        pool.streaming.discard(other)
    assert not pool.passes(60)


def test_what_is_begun_is_never_suspected_else(pool):
    for streams in (True, False):
        key = pool.send(streams=streams)
        pool.calls[key] = pool.calls[key]._replace(has_begun=True)
    assert pool.passes(600) == {}


def test_where_nothing_comes_of_any_stream_all_that_has_not_begun_is_suspected(pool):
    begun = pool.send()
    pool.begin(begun)
    pool.passes(60)
    pool.waiting["a"] = 3  # as it says for ever
    unbegun = {pool.send(), pool.send(streams=False)}
    elsewhere = pool.send("b", streams=False)
    pool.passes(2)
    pool.streaming.clear()
    suspected = pool.passes(20)
    assert set(suspected) == unbegun
    assert elsewhere not in suspected


def test_a_slow_client_says_nothing_of_the_instance(pool):
    begun = pool.send()
    pool.begin(begun)
    pool.passes(60)
    pool.waiting["a"] = 3
    pool.send(), pool.send(streams=False)
    pool.paused.add(begun)
    assert pool.passes(60) == {}


def test_an_engine_that_makes_steps_is_not_silent(pool):
    begun = pool.send()
    pool.begin(begun)
    pool.passes(60)
    pool.streaming.clear()
    pool.send(streams=False)
    for n in range(60):
        pool.preemptions["a"] = n
        assert pool.passes(1) == {}


def test_a_whole_answer_is_lost_where_the_engine_does_not_have_it(pool):
    pool.learn(streams=False)
    lost, long = pool.send(streams=False), pool.send(streams=False)
    assert pool.passes(60) == {}  # it says that it has both
    pool.lost.add(lost)
    suspected = pool.passes(3)
    assert len(suspected) == 1, "no more than are missing"
    assert long in pool.calls


def test_nothing_is_suspected_that_has_nowhere_to_go():
    for pool in (Pool(("a",)), Pool(models=("other",))):
        pool.learn()
        pool.send()
        assert pool.passes(300) == {}
    pool = Pool()
    pool.learn()
    pool.stalls.remove_instance("b")
    pool.send()
    assert pool.passes(300) == {}


def test_nor_where_the_other_instance_is_silent_too(pool):
    for name in "ab":
        pool.begin(pool.send(name))
    pool.passes(60)
    pool.streaming.clear()
    for name in "ab":
        pool.send(name, streams=False)
        pool.waiting[name] = 1
    assert pool.passes(60) == {}


def test_nothing_is_suspected_within_two_seconds(pool):
    pool.learn(4000, streams=False)
    key = pool.send(streams=False)
    pool.lost.add(key)
    assert pool.passes(1.5) == {}
    assert set(pool.passes(2.5)) == {key}


def test_while_nobody_looks_no_silence_counts(pool):
    pool.send()
    pool.at += 600 * SECOND
    assert pool.passes(1.5) == {}


def test_an_instance_of_which_nothing_is_known_is_judged_by_the_others_with_more_patience(pool):
    """So is one that comes back: it may be another."""
    pool.stalls.remove_instance("a")
    pool.stalls.add_instance(build.instance("a"))
    new, known = pool.send("a"), pool.send("b")
    began = pool.at / SECOND
    suspected = pool.passes(60)
    assert suspected[new] - began > 2 * (suspected[known] - began)


def test_calls_at_an_instance_that_has_left_are_judged_by_what_was_known(pool):
    key = pool.send()
    pool.stalls.remove_instance("a")
    pool.tells = False
    assert set(pool.passes(20)) == {key}


def test_engines_that_do_not_tell_are_judged_by_the_time():
    pool = Pool(tells=False)
    pool.learn()
    key = pool.send()
    assert set(pool.passes(20)) == {key}


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9000), st.booleans()), max_size=8),
    st.booleans(),
)
def test_once_suspected_it_stays_so_until_there_is_progress(sent, tells):
    pool = Pool(tells=tells)
    pool.learn(40)
    keys = [pool.send(name, tokens=tokens, streams=streams) for name, tokens, streams in sent]
    suspected = set()
    for _ in range(60):
        now = set(pool.passes(1))
        assert suspected <= now | {key for key in keys if not pool.calls[key].streams}
        suspected |= now
    for key in keys:
        if pool.calls[key].streams:
            pool.begin(key)
    assert not {key for key in pool.passes(1) if pool.calls[key].streams}
