"""Whatever arrives, ends and comes and goes: no request is lost or in two places, and none waits
beside an instance that has room for it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kairos.errors import KairosError
from kairos.events import (
    Arrived,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    Refuse,
)
from tests import build

INSTANCES = ["a", "b", "c"]
MODELS = ["m", "n", None]
MAX_WAITING = 6


class BalancerMachine(RuleBasedStateMachine):
    """The model: what was accepted and has not ended, and where it was sent."""

    @initialize(placement=st.sampled_from(["round-robin", "least-kv"]))
    def start(self, placement):
        self.balancer = build.balancer(placement=placement, max_waiting=MAX_WAITING)
        self.at, self.arrivals = 0, 0
        self.fleet = {}
        self.waiting, self.running = {}, {}
        self.placed_at_most = {}

    def tell(self, event):
        self.at += 1
        for command in self.balancer.handle(event, self.at):
            request = self.waiting.pop(command.request_id)  # KeyError: never asked for, or twice
            match command:
                case Dispatch(instance_id=instance_id):
                    instance = self.fleet[instance_id]
                    assert request.model is None or request.model in instance.models
                    self.running[request.id] = (request, instance_id)
                    self.check_room(instance)
                case Refuse():
                    assert not any(self.can_ever_hold(i, request) for i in self.fleet.values())

    def check_room(self, instance):
        """No dispatch overfills its instance, by the model's own sums."""
        here = [r for r, instance_id in self.running.values() if instance_id == instance.id]
        assert len(here) <= instance.max_num_seqs
        if instance.kv_tokens is not None and len(here) > 1:
            assert sum(r.peak_kv_tokens for r in here) <= instance.kv_tokens

    def can_ever_hold(self, instance, request):
        serves = request.model is None or request.model in instance.models
        return serves and (
            instance.kv_tokens is None or request.prompt_tokens <= instance.kv_tokens
        )

    @rule(
        prompt=st.integers(1, 60),
        completion=st.integers(1, 40),
        model=st.sampled_from([*MODELS, "unknown"]),
    )
    def arrive(self, prompt, completion, model):
        self.arrivals += 1
        request = build.request(
            f"r{self.arrivals}", at=self.at, prompt=prompt, completion=completion, model=model
        )
        self.waiting[request.id] = request
        before = self.balancer.waiting
        try:
            self.tell(Arrived(request))
        except KairosError:
            del self.waiting[request.id]
            assert self.balancer.waiting == before
            servable = any(self.can_ever_hold(i, request) for i in self.fleet.values())
            assert not servable or before == MAX_WAITING

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data())
    def arrive_twice(self, data):
        known = [*self.waiting.values(), *(r for r, _ in self.running.values())]
        request = data.draw(st.sampled_from(known))
        assert self.balancer.handle(Arrived(request), self.at) == []

    @precondition(lambda self: self.running)
    @rule(data=st.data(), end=st.sampled_from([Finished, Failed, Cancelled, FirstToken]))
    def end_running(self, data, end):
        name = data.draw(st.sampled_from(sorted(self.running)))
        if end is not FirstToken:
            del self.running[name]
        self.tell(end(name, "why") if end is Failed else end(name))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel_waiting(self, data):
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[name]
        self.tell(Cancelled(name))

    @rule(name=st.text("xyz", min_size=1), end=st.sampled_from([Finished, Cancelled, FirstToken]))
    def hear_of_a_stranger(self, name, end):
        assert self.balancer.handle(end(name), self.at) == []

    @rule(
        name=st.sampled_from(INSTANCES),
        models=st.sampled_from([("m",), ("n",), ("m", "n")]),
        seqs=st.integers(1, 3),
        kv=st.one_of(st.none(), st.integers(30, 150)),
    )
    def join(self, name, models, seqs, kv):
        running_here = sum(where == name for _, where in self.running.values())
        instance = build.instance(name, models=models, seqs=max(seqs, running_here), kv=kv)
        if any(where == name for _, where in self.running.values()) and kv is not None:
            booked = sum(r.peak_kv_tokens for r, where in self.running.values() if where == name)
            instance = build.instance(
                name, models=models, seqs=max(seqs, running_here), kv=max(kv, booked)
            )
        self.fleet[name] = instance
        self.tell(InstanceJoined(instance))

    @precondition(lambda self: self.fleet)
    @rule(data=st.data())
    def leave(self, data):
        name = data.draw(st.sampled_from(sorted(self.fleet)))
        del self.fleet[name]
        self.tell(InstanceLeft(name))

    @invariant()
    def nothing_is_lost_or_doubled(self):
        queued = [r.id for q in self.balancer._queues.values() for r in q.requests()]
        assert sorted(queued) == sorted(self.waiting)
        assert len(self.balancer.ledger) == len(self.running)
        for name, (_, instance_id) in self.running.items():
            assert name in self.balancer.ledger._booked[instance_id]

    @invariant()
    def nothing_waits_beside_an_instance_with_room(self):
        for request in self.waiting.values():
            for instance in self.fleet.values():
                if self.can_ever_hold(instance, request):
                    assert not self.has_room(instance, request), (request.id, instance.id)

    def has_room(self, instance, request):
        here = [r for r, where in self.running.values() if where == instance.id]
        if len(here) >= instance.max_num_seqs:
            return False
        if instance.kv_tokens is None:
            return True
        booked = self.balancer.ledger.booked_tokens(instance.id)
        return booked + min(request.peak_kv_tokens, instance.kv_tokens) <= instance.kv_tokens

    @invariant()
    def the_ledger_keeps_nothing_of_those_who_are_gone(self):
        known = set(self.fleet) | {where for _, where in self.running.values()}
        assert set(self.balancer.ledger._booked) <= known


TestBalancer = BalancerMachine.TestCase
TestBalancer.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


def test_the_model_itself_notices_a_lost_request():
    machine = BalancerMachine()
    machine.start("least-kv")
    machine.join("a", ("m",), 1, None)
    machine.arrive(1, 1, "m")
    machine.running.clear()

    with pytest.raises(AssertionError):
        machine.nothing_is_lost_or_doubled()
