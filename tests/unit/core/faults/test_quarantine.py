"""Calls that may have killed an instance: none goes to a second one beside other calls."""

import pytest

from kairos.core import (
    SECOND,
    Arrived,
    Bounced,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    KairosError,
    Tick,
)
from kairos.core.faults.quarantine import ALONE_US, BEGINS_US, HELD_US, SLOWED_US, SUSPICION_US
from tests.support.simulate import build


class Pool:
    """Instances that were well for a while, before a balancer."""

    def __init__(self, *names, served=24):
        self.balancer = build.balancer(*(build.instance(name, seqs=8) for name in names))
        self.names, self.where, self.refused = names, {}, {}
        for number in range(served // 12):
            self.fill(f"warm {number}", 12)
            self.finish(*self.where)

    def tell(self, event, after_us=0):
        """What is decided: where each call goes, and why; or why it is refused."""
        for command in self.balancer.handle(event, self.balancer.at + after_us):
            if isinstance(command, Dispatch):
                self.where[command.request_id] = command.instance_id, command.reason
            else:
                del self.where[command.request_id]
                self.refused[command.request_id] = command.reason

    def arrive(self, name, *, body=None, agent="good", after_us=0):
        at = self.balancer.at + after_us
        app = None if agent is None else "app"
        request = build.request(name, at=at, app=app, agent=agent)
        self.where[name] = None, None
        try:
            self.tell(Arrived(request, body), after_us)
        except KairosError as error:
            self.where.pop(name)
            self.refused[name] = error.code

    def on(self, instance_id):
        return [name for name, (where, _) in self.where.items() if where == instance_id]

    def finish(self, *names):
        for name in list(names):
            del self.where[name]
            self.tell(Finished(name))

    def bounce(self, *names, body=None):
        for name in names:
            self.where[name] = None, None
            self.tell(Bounced(name, "broke", body or hash(name) >> 11, dropped=True))

    def die(self, instance_id):
        """With all that runs there."""
        self.bounce(*self.on(instance_id))
        self.tell(InstanceLeft(instance_id))

    def restart(self, instance_id):
        self.tell(InstanceJoined(build.instance(instance_id, seqs=8)))

    def fill(self, prefix, count):
        for number in range(count):
            self.arrive(f"{prefix} {number}")


@pytest.fixture
def three():
    return Pool("a", "b", "c")


def convict(pool):
    """A call that kills two instances."""
    killing(pool)
    pool.die(pool.where["killer"][0])
    assert pool.refused["killer"] == "breaks_engines"
    for name in pool.names:
        pool.restart(name)


def killing(pool, name="killer"):
    """Arrives where nothing else runs, and its instance dies."""
    pool.arrive(name, agent="bad")
    instance_id, _ = pool.where[name]
    pool.die(instance_id)
    return instance_id


class TestSetAside:
    def test_a_call_that_bounced_waits_until_its_instance_is_heard_of(self, three):
        three.arrive("one")
        there, _ = three.where["one"]
        three.bounce("one")
        assert three.where["one"] == (None, None)
        three.tell(InstanceStatus(there))
        assert three.where["one"][0] not in (None, there)

    def test_an_answer_to_a_call_that_went_there_since_says_that_it_is_well(self, three):
        three.arrive("one")
        there, _ = three.where["one"]
        three.arrive("before")
        while three.where["before"][0] != there:
            three.finish("before")
            three.arrive("before")
        three.tell(Tick(), 1)
        three.bounce("one")
        three.finish("before")  # its last bytes may have been on their way
        assert three.where["one"] == (None, None)
        while three.where["one"][0] is None:
            three.arrive("since", after_us=1)
            is_there = three.where["since"][0] == there
            three.finish("since")
            assert is_there == (three.where["one"][0] is not None)

    def test_it_waits_no_longer_than_the_instance_may_take_to_be_heard_of(self, three):
        three.arrive("one")
        three.bounce("one")
        assert three.balancer.tick_at == three.balancer.at + HELD_US
        three.tell(Tick(), HELD_US)
        assert three.where["one"][1] == "returned"

    def test_nothing_is_kept_of_one_whose_client_leaves(self, three):
        three.arrive("one")
        three.bounce("one")
        three.tell(Cancelled("one"))
        three.tell(Tick(), 2 * HELD_US)
        assert not three.balancer.faults.quarantine
        assert three.balancer.waiting == 0


class TestSuspects:
    def test_one_runs_alone_where_nothing_runs(self, three):
        killing(three)
        assert three.where["killer"][1] == "alone"

    def test_an_instance_is_emptied_for_it_while_others_take_what_comes(self, three):
        three.fill("long", 9)
        three.arrive("killer", agent="bad")
        dead = three.where["killer"][0]
        beside = [name for name in three.on(dead) if name != "killer"]
        for name in beside:
            three.finish(name)
        three.die(dead)
        spared = three.balancer.faults.quarantine.room
        assert spared not in (None, dead)
        three.fill("more", 4)
        assert not [name for name in three.on(spared) if name.startswith("more")]
        assert three.where["killer"] == (None, None)
        three.finish(*three.on(spared))
        assert three.where["killer"] == (spared, "alone")

    def test_nothing_else_goes_there_until_it_is_known_not_to_kill(self, three):
        killing(three)
        spared, _ = three.where["killer"]
        three.fill("more", 8)
        assert three.on(spared) == ["killer"]
        three.tell(FirstToken("killer"))
        three.fill("rest", 8)
        assert len(three.on(spared)) > 1

    def test_after_a_while_it_is_not_what_kills(self, three):
        killing(three)
        spared, _ = three.where["killer"]
        three.tell(Tick(), ALONE_US)
        three.fill("rest", 8)
        assert len(three.on(spared)) > 1

    def test_one_whose_like_was_served_elsewhere_is_none(self, three):
        for name in ("held", "like"):
            three.arrive(name, body=7)
        there = three.where["held"][0]
        three.bounce("held", body=7)
        three.tell(Bounced("like", "busy", 7, about_itself=True))
        three.finish("like")
        three.tell(InstanceLeft(there))
        assert three.where["held"][1] == "returned"

    def test_an_instance_that_dies_with_two_of_one_body_condemns_neither(self, three):
        """Two users ask the same: that one engine fell over says so once."""
        names = [f"same {number}" for number in range(4)]
        for name in names:
            three.arrive(name, body=7)
        dead = next(each for each in three.names if len(three.on(each)) > 1)
        three.tell(Tick(), SECOND)
        for name in three.on(dead):
            three.bounce(name, body=7)
        three.tell(InstanceLeft(dead))
        three.restart(dead)
        three.arrive("later", body=7)
        assert three.refused == {}
        while three.where:
            three.finish(next(name for name, (there, _) in three.where.items() if there))
        assert three.refused == {}

    def test_whoever_ran_beside_it_runs_alone_one_after_the_other(self, three):
        three.fill("one", 6)
        dead = three.where["one 0"][0]
        suspects = three.on(dead)
        assert len(suspects) > 1
        three.die(dead)
        ran = []
        for _ in suspects:
            for other in set(three.names) - {dead}:
                three.finish(*(n for n in three.on(other) if n not in suspects))
            [alone] = [n for n in suspects if three.where.get(n, (0, 0))[1] == "alone"]
            ran.append(alone)
            three.finish(alone)
        assert sorted(ran) == sorted(suspects)

    def test_beside_a_call_of_somebody_new_those_of_long_standing_are_none(self):
        pool = Pool("a", "b", "c", served=600)
        pool.fill("good", 9)
        pool.arrive("new", agent="bad")
        dead = pool.where["new"][0]
        good = [name for name in pool.on(dead) if name != "new"]
        pool.die(dead)
        assert pool.where["new"] == (None, None)
        assert {pool.where[name][1] for name in good} == {"returned"}

    def test_without_one_they_are(self):
        pool = Pool("a", "b", "c", served=600)
        pool.arrive("good")
        pool.die(pool.where["good"][0])
        assert pool.where["good"][1] == "alone"

    def test_one_that_had_long_run_is_less_suspected(self, three):
        three.arrive("old")
        dead = three.where["old"][0]
        three.tell(Tick(), BEGINS_US + SECOND)
        three.arrive("new")
        while three.where["new"][0] != dead:
            three.finish("new")
            three.arrive("new")
        three.die(dead)
        risk = three.balancer.faults._attribution.may_kill
        assert risk(hash("old") >> 11) < risk(hash("new") >> 11) / 10

    def test_a_stream_that_broke_with_its_instance_is_remembered(self, three):
        three.arrive("one")
        there = three.where.pop("one")[0]
        three.tell(Failed("one", "broke", by_instance=True, body=7, dropped=True))
        three.tell(InstanceLeft(there))
        three.arrive("same", body=7)
        assert three.where["same"][1] == "alone"

    def test_one_that_is_told_of_after_its_instance_left_is_one_too(self, three):
        three.arrive("one")
        three.tell(InstanceLeft(three.where["one"][0]))
        three.bounce("one")
        assert three.where["one"][1] == "alone"

    def test_where_an_operator_took_it_out_no_call_is_at_fault(self, three):
        for name in ("before", "after"):
            three.arrive(name)
            there = three.where[name][0]
            if name == "before":
                three.bounce(name)
            three.tell(InstanceLeft(there, drained=True))
            if name == "after":
                three.bounce(name)
            assert three.where[name][1] == "returned"
            three.finish(name)
            three.restart(there)


class TestWithoutASpare:
    def test_the_last_instance_is_not_risked(self):
        pool = Pool("a", "b")
        dead = killing(pool)
        assert pool.where["killer"] == (None, None)
        pool.arrive("good")
        assert pool.where["good"][0] is not None
        pool.restart(dead)
        pool.finish("good")
        assert pool.where["killer"][1] == "alone"

    def test_but_who_is_likely_sound_does_not_wait_for_ever(self):
        pool = Pool("a", "b", served=600)
        pool.arrive("good")
        pool.die(pool.where["good"][0])
        assert pool.where["good"] == (None, None)
        pool.tell(Tick(), SUSPICION_US)
        assert pool.where["good"][1] == "returned"

    def test_nor_does_one_that_is_likely_not(self):
        pool = Pool("a", "b")
        killing(pool)
        pool.tell(Tick(), SUSPICION_US - 1)
        assert pool.where["killer"] == (None, None)
        pool.tell(Tick(), 1)
        assert pool.where["killer"][1] == "returned"

    def test_a_single_instance_has_no_spare(self):
        pool = Pool("a")
        killing(pool)
        assert pool.refused == {"killer": "no_other"}


class TestCallers:
    def test_the_next_call_of_whose_call_killed_comes_later_and_runs_alone(self, three):
        convict(three)
        three.arrive("next", agent="bad")
        assert three.refused["next"] == "caller_breaks_engines"
        three.arrive("good")
        assert three.where["good"][0] is not None
        three.finish("good")
        three.arrive("later", agent="bad", after_us=SLOWED_US)
        assert three.where["later"][1] == "alone"

    def test_while_one_waits_the_next_is_refused(self, three):
        convict(three)
        for name in "ab":
            three.tell(InstanceLeft(name))
        three.arrive("waits", agent="bad", after_us=SLOWED_US)
        assert three.where["waits"] == (None, None)
        three.arrive("next", agent="bad")
        assert three.refused["next"] == "caller_breaks_engines"

    def test_whose_calls_have_no_name_are_of_many(self, three):
        for name in ("one", "two"):
            three.arrive(name, agent=None)
            three.die(three.where[name][0])
            three.die(three.where[name][0])
            assert three.refused[name] == "breaks_engines"
            for each in "abc":
                three.restart(each)
        three.arrive("three", agent=None)
        assert three.where["three"][1] == "first"

    def test_those_that_wait_with_the_same_body_are_refused_with_it(self, three):
        three.arrive("one", agent="bad")
        there = three.where["one"][0]
        three.bounce("one", body=7)
        three.tell(InstanceLeft(there))
        for name in ("two", "three"):
            three.arrive(name, body=7, agent="bad")
        three.bounce("one", body=7)
        three.tell(InstanceLeft(next(each for each in three.names if each != there)))
        assert set(three.refused) == {"one", "two", "three"}

    def test_whose_other_calls_are_served_is_trusted_again(self, three):
        convict(three)
        for number in range(80):
            three.arrive(f"sound {number}", agent="bad", after_us=SLOWED_US)
            three.finish(f"sound {number}")
        three.arrive("next", agent="bad")
        assert three.where["next"][1] == "first"
