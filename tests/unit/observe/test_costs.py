"""What each instance would have cost, told from a log that has facts and decisions only."""

import msgspec

from kairos.core import Arrived, Finished, InstanceJoined, InstanceStatus, Runtime
from kairos.observe import explain_from_log, read_costs
from kairos.observe.explain import costs_of
from tests.support.simulate import build
from tests.support.simulate.model import VirtualClock
from tests.unit.observe.test_explain import log, shown  # noqa: F401  (a fixture)


class Pool:
    """A balancer with the default placement, and the records of what it was told."""

    def __init__(self, *instances):
        self.records, self.clock = [], VirtualClock()
        self.runtime = Runtime(
            build.balancer(policy="kairos", placement="kairos"),
            self,
            self.clock,
            (self.records.append,),
        )
        for each in instances:
            self.tell(InstanceJoined(each))

    def dispatch(self, command):
        pass

    def refuse(self, command):
        pass

    def tell(self, event):
        self.runtime.feed(event)

    def arrive(self, name, **said):
        self.tell(Arrived(build.request(name, at=self.clock.now(), **said)))

    def costs(self, workflow_id):
        return costs_of(self.records, "default", workflow_id)


def instance(name, **limits):
    return build.instance(name, **{"kv": 1000, "max_num_batched_tokens": 500} | limits)


def test_the_busier_instance_costs_more_and_the_chosen_one_is_named():
    pool = Pool(instance("a"), instance("b"))
    pool.arrive("first", prompt=100, workflow_id="v")
    pool.arrive("second", prompt=100, workflow_id="w")

    [[busy, idle]] = pool.costs("w").values()
    assert (busy.instance, busy.chosen, idle.instance, idle.chosen) == ("a", False, "b", True)
    assert busy.cost_s > idle.cost_s > 0
    assert busy.peak_share > idle.peak_share > 0
    assert busy.out is None


def test_an_instance_that_was_out_says_why():
    pool = Pool(
        instance("small", kv=50),
        instance("full", seqs=1),
        instance("free"),
        instance("short", kv=320),
    )
    pool.arrive("one", prompt=300, workflow_id="v")
    pool.tell(InstanceStatus("full", kv_used=0.2, running=1, waiting=0))
    before = {each.instance: each for [[*found]] in [pool.costs("v").values()] for each in found}
    pool.arrive("two", prompt=200, workflow_id="w")

    found = {each.instance: each for [[*found]] in [pool.costs("w").values()] for each in found}
    assert before["small"].out == "its memory could never hold the call"
    assert found["small"].out == "its memory could never hold the call"
    taken = next(each.instance for each in before.values() if each.chosen)
    assert taken == "full"
    assert found["full"].out == "it had no free sequence, or no free tokens in a step"


def test_all_calls_of_the_workflow_are_told_and_no_others():
    pool = Pool(instance("a", seqs=1))
    for name, workflow in (("x", "v"), ("y", "w"), ("z", "w")):
        pool.arrive(name, workflow_id=workflow)
    pool.tell(Finished("x", 10, 5))
    pool.tell(Finished("y", 10, 5))

    assert list(pool.costs("w")) == ["y", "z"]
    assert all(each.chosen for [each] in pool.costs("w").values())


def test_a_person_sees_them_below_the_call(log):  # noqa: F811
    pool = Pool(instance("a"), instance("b", seqs=1))
    pool.arrive("other", workflow_id="v", prompt=300)
    pool.arrive("mine", workflow_id="w", agent="writer", prompt=300)
    directory = log(*pool.records)
    view = explain_from_log(directory, None, "w")

    said = shown(view, read_costs(directory, view))
    assert " (chosen): " in said
    assert "peak memory" in said
    assert "cost on" not in shown(view)
    assert msgspec.json.encode(read_costs(directory, view))
