"""Whatever arrives, ends, is learnt, and comes and goes, and whatever the policy: no request is
lost or in two places, none waits beside an instance that has room for it but for one that is
overdue, and nothing is kept of what has gone."""

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kairos.core import (
    FEATURES,
    MAX_RETRIES,
    PLACEMENTS,
    POLICIES,
    POOLED_AGENT,
    QUANTILES,
    SECOND,
    AgentRank,
    Arrived,
    Bounced,
    Budget,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    KairosError,
    ProfilesLearnt,
    Progressed,
    Refuse,
    RemainingModel,
    Tick,
    WorkflowEnded,
    agent_key_of,
)
from kairos.core.dispatcher.placements import THRESHOLD
from tests.support.core import learnt
from tests.support.examples import examples
from tests.support.simulate import build

pytestmark = pytest.mark.both

INSTANCES = ["a", "b", "c"]
BODIES = st.sampled_from([None, None, 1, 2])
WAYS_BACK = [{}, {"about_itself": True}, {"dropped": True}, {"by_instance": False}]
# What these go by is used now; up to which share of the memory.
NOW = {"round-robin": 1.0, "least-kv": THRESHOLD}
MODELS = ["m", "n", None]
CANCELLED = "x"  # a workflow
APPS = {"u": "app", "v": "other", "w": None, CANCELLED: None}  # by workflow
AGENTS = ["x", "y", None]
MAX_WAITING = 6
MAX_WAIT_US = 40
GRACE_US = 20
NAMES = [f"r{n}" for n in range(MAX_WAITING + 3 * len(INSTANCES) + 1)]  # one is always free


@dataclass
class Use:
    """What the model knows of a workflow that has a budget, since it is known."""

    began_at: int
    calls: int = 0  # that run, wait, or ran
    tokens: int = 0  # of prompts and answers


@dataclass
class Wait:
    """What the model knows of a request that waits."""

    seq: int
    due_at: int  # when it is overdue, whatever else of its workflow waited
    patient_until: int | None  # by the policy


class BalancerMachine(RuleBasedStateMachine):
    """The model: what was accepted and has not ended, and where it was sent."""

    @initialize(
        placement=st.sampled_from([*PLACEMENTS]),
        policy=st.sampled_from([*POLICIES]),
        budget=st.sampled_from([Budget(), Budget(9), Budget(None, 250), Budget(None, None, 60)]),
        known=st.booleans(),
    )
    def start(self, placement, policy, budget, known):
        self.budget, self.uses, self.use_of = budget, {}, {}
        self.balancer = build.balancer(
            policy=policy,
            placement=placement,
            max_waiting=MAX_WAITING,
            max_wait_us=MAX_WAIT_US,
            guard=build.overdue_after(GRACE_US),
            budget=budget,
        )
        self.estimates = self.balancer.estimates
        self.policy = POLICIES[policy](self.estimates)
        self.placement = placement
        self.at, self.arrivals = 0, 0
        circuits = self.balancer.faults.circuits
        circuits._first_us, circuits._longest_us = 5, 20
        quarantine = self.balancer.faults.quarantine
        quarantine._held_us, quarantine._alone_us = 8, 12
        self.fleet, self.tried, self.returned = {}, {}, {}
        self.failed_bodies, self.failed_callers = set(), set()
        self.is_cancelled, self.generated = False, {}
        self.suspected, self.ran_alone = set(), set()  # as they arrived; where they were sent last
        self.waiting, self.running, self.waits = {}, {}, {}
        self.first_came = {}  # by workflow
        self.begun, self.newcomers = {}, []  # whether each workflow has; who waits of those not
        for name, models, kv in (("a", ("m", "n"), 100), ("b", ("m",), 60)):
            self.join(name, models, 1, kv)
        if known:  # that these take half a second at least, so no deadline here can be met
            self.learn("app", "x", 1, "profile")
        for n, workflow in enumerate("uvuvu"):
            work = {"prompt": 5 + 10 * n, "completion": 25 - 4 * n, "workflow": workflow}
            self.take_in(f"r{n}", model="m", agent="x", **work)

    def tell(self, event):
        self.at += 1
        for command in self.balancer.handle(event, self.at):
            if isinstance(command, Refuse) and command.reason in ("cancelled", "out_of_time"):
                self.check_given_up_anywhere(command, event)
                self.waits.pop(command.request_id, None)
                self.forget_tries(command.request_id)
                ran = command.request_id in self.running
                del (self.running if ran else self.waiting)[command.request_id]
                self.note_end(command.request_id, ran=ran)
                continue
            request = self.waiting.pop(command.request_id)  # KeyError: never asked for, or twice
            match command:
                case Refuse(reason="queue_full"):
                    self.check_place_taken(event, request)
                case Dispatch(instance_id=instance_id):
                    self.begin(request, is_alone=command.reason == "alone")
                    instance = self.fleet[instance_id]
                    assert instance_id not in self.tried.get(request.id, ())
                    assert not self.is_aside(request.id)
                    self.running[request.id] = (request, instance_id)
                    self.check_room(instance)
                    del self.waits[request.id]
                case Refuse(reason="too_late"):
                    self.note_end(request.id, ran=False)
                    assert isinstance(event, Arrived), "only as it arrives"
                    assert event.request == request
                    assert self.at + command.needs_us > request.deadline_at
                case Refuse(reason="waited_too_long"):
                    self.note_end(request.id, ran=False)
                    self.forget_tries(request.id)
                    assert request.arrived_at + MAX_WAIT_US <= self.at
                case Refuse(reason="breaks_engines"):
                    self.note_end(request.id, ran=False)
                    self.forget_tries(request.id)
                    assert isinstance(event, Bounced | Failed | InstanceLeft)
                case Refuse(reason=reason):
                    self.note_end(request.id, ran=False)
                    tried, returns = self.forget_tries(request.id)
                    assert reason == ("no_other" if returns else "no_instance")
                    others = [i for i in self.fleet.values() if i.id not in tried]
                    may_go = any(self.can_ever_hold(i, request) for i in others)
                    assert not may_go or returns > MAX_RETRIES
        self.wake()
        if not isinstance(event, ProfilesLearnt):  # the fact after it renews all the few keys here
            assert not any(queue.by_key.moving for queue in self.balancer._queues._queues.values())
        self.waits = {name: wait for name, wait in self.waits.items() if name in self.waiting}

    def wake(self):
        """What is told need say nothing of room, nor of whose time is up."""
        tick_at = self.balancer.tick_at
        if tick_at is not None and tick_at <= self.at:
            self.tell(Tick())

    def check_given_up_anywhere(self, command, event):
        use = self.use_of[command.request_id][0]
        if command.reason == "out_of_time":
            assert isinstance(event, Tick)
            assert self.at >= use.began_at + self.budget.wall_us
        else:
            assert event == WorkflowEnded("default", CANCELLED, cancelled=True)

    def note_arrival(self, request):
        use = self.uses.setdefault(request.workflow_id, Use(self.at + 1))
        use.calls += 1
        use.tokens += request.prompt_tokens
        self.use_of[request.id] = use, request.prompt_tokens

    def note_end(self, name, *, ran, tokens=None):
        """`tokens`: of prompt and answer, as the engine tells."""
        use, prompt = self.use_of.pop(name)
        self.newcomers = [each for each in self.newcomers if each != name]
        if not ran:
            use.calls -= 1
            use.tokens -= prompt
        elif tokens is not None:
            use.tokens += tokens - prompt
        else:  # as far as it is known
            use.tokens += self.generated.pop(name, 0)

    def over_budget(self, request, at):
        """Of what, if anything, the call's workflow would use too much."""
        use = self.uses.get(request.workflow_id, Use(at))
        if self.budget.calls is not None and use.calls + 1 > self.budget.calls:
            return "budget_calls"
        tokens = use.tokens + 1  # a prompt's length is estimated here, which refuses nothing
        if self.budget.tokens is not None and tokens > self.budget.tokens:
            return "budget_tokens"
        if self.budget.wall_us is not None and at - use.began_at >= self.budget.wall_us:
            return "budget_time"
        return None

    def check_place_taken(self, event, request):
        """By a call of a workflow that has begun, and from the newest of one that has not."""
        assert isinstance(event, Arrived)
        assert self.begun[event.request.workflow_id]
        assert request.id == self.newcomers[-1]
        assert len(self.waiting) >= MAX_WAITING
        self.note_end(request.id, ran=False)

    def begin(self, request, *, is_alone):
        """It is dispatched: so has its workflow, unless that has ended meanwhile."""
        self.ran_alone.discard(request.id)
        if is_alone:
            self.ran_alone.add(request.id)
        if request.workflow_id in self.begun:
            self.begun[request.workflow_id] = True
        of_it = [r.id for r in self.waiting.values() if r.workflow_id == request.workflow_id]
        if request.id in self.newcomers:
            self.newcomers = [each for each in self.newcomers if each not in [*of_it, request.id]]

    def forget_tries(self, name):
        """Where it was tried, and how often it came back."""
        return self.tried.pop(name, ()), self.returned.pop(name, 0)

    def check_room(self, instance):
        """No dispatch overfills its instance, by the model's own sums."""
        here = [r for r, instance_id in self.running.values() if instance_id == instance.id]
        assert len(here) <= instance.max_num_seqs
        if instance.kv_tokens is not None and len(here) > 1 and self.placement in NOW:
            assert sum(r.prompt_tokens for r in here) <= NOW[self.placement] * instance.kv_tokens

    def can_ever_hold(self, instance, request):
        serves = request.model is None or request.model in instance.models
        is_new = instance.id not in self.tried.get(request.id, ())
        return (serves and is_new) and (
            instance.kv_tokens is None or request.prompt_tokens <= instance.kv_tokens
        )

    @rule(
        data=st.data(),
        prompt=st.integers(1, 60),
        completion=st.integers(1, 40),
        model=st.sampled_from([*MODELS, *MODELS, "unknown"]),
        workflow=st.sampled_from([*sorted(APPS), *[None] * 4]),  # None: it begins one
        agent=st.sampled_from(AGENTS),
        within_us=st.none() | st.integers(0, 3 * MAX_WAIT_US),
        body=BODIES,
        times=st.integers(1, 4),
    )
    def arrive(self, data, times, **fields):
        for _ in range(times):
            free = sorted({*NAMES} - {*self.waiting} - {*self.running})
            self.take_in(data.draw(st.sampled_from(free)), **fields)

    def take_in(self, name, *, workflow="w", within_us=None, body=None, **fields):
        self.at += 1
        workflow = workflow or name
        app = APPS.get(workflow)
        deadline_at = None if within_us is None else self.at + 1 + within_us
        request = build.request(
            name, at=self.at, workflow_id=workflow, app=app, deadline_at=deadline_at, **fields
        )
        self.suspected.discard(name)
        patience_us = self.policy.patience_us(request)
        due_at = self.at + 1 + GRACE_US
        patient_until = None if patience_us is None else self.at + 1 + patience_us
        self.waits[name] = Wait(self.arrivals, min(due_at, patient_until or due_at), patient_until)
        self.first_came.setdefault(workflow, self.at + 1)
        self.waiting[name] = request
        self.arrivals += 1
        before, newcomers = self.balancer.waiting, self.newcomers
        known = dict(self.begun)
        if not self.begun.setdefault(workflow, False):
            self.newcomers = [*newcomers, name]
        over_budget = self.over_budget(request, self.at + 1)
        uses = dict(self.uses)
        self.note_arrival(request)
        try:
            self.tell(Arrived(request, body))
        except KairosError as error:
            self.note_end(name, ran=False)
            self.uses = uses
            del self.waiting[name], self.waits[name]
            self.begun, self.newcomers = known, newcomers
            assert self.balancer.waiting == before
            self.check_refusal(error, request, body, before, newcomers, over_budget)
            self.wake()
        else:
            assert over_budget is None
            if self.is_aside(name):
                self.suspected.add(name)

    def check_refusal(self, error, request, body, before, newcomers, over_budget):
        said = getattr(error, "code", "")
        if said == "call_breaks_engines":
            assert body in self.failed_bodies
            return
        if said == "caller_breaks_engines":
            assert agent_key_of(request) in self.failed_callers
            return
        servable = any(self.can_ever_hold(i, request) for i in self.fleet.values())
        is_full = before >= MAX_WAITING  # more may have come back
        refused = not servable or (self.is_cancelled and request.workflow_id == CANCELLED)
        assert (said if said.startswith("budget") else None) == (None if refused else over_budget)
        if said != over_budget:
            if (
                servable
                and is_full
                and not (self.is_cancelled and request.workflow_id == CANCELLED)
            ):
                assert not (newcomers and self.begun.get(request.workflow_id)), (
                    "its workflow has begun"
                )
            assert (
                is_full or not servable or (self.is_cancelled and request.workflow_id == CANCELLED)
            )

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
            self.forget_tries(name)
            tokens = 90 if end is Finished else None
            self.note_end(name, ran=True, tokens=tokens)
        told = {Failed: ("why",), Finished: (50, 40)}.get(end, ())
        if end is FirstToken:
            self.generated.setdefault(name, 1)
        self.tell(end(name, *told))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), body=BODIES, dropped=st.booleans())
    def fail_by_the_instance(self, data, body, dropped):
        name = data.draw(st.sampled_from(sorted(self.running)))
        self.failed_callers.add(agent_key_of(self.running.pop(name)[0]))
        self.forget_tries(name)
        self.note_end(name, ran=True)
        self.failed_bodies.add(body)
        self.tell(Failed(name, "why", by_instance=True, body=body, dropped=dropped))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), body=BODIES, how=st.sampled_from(WAYS_BACK))
    def come_back(self, data, body, how):
        name = data.draw(st.sampled_from(sorted(self.running)))
        request, instance_id = self.running.pop(name)
        self.generated.pop(name, None)
        self.returned[name] = self.returned.get(name, 0) + 1
        if instance_id in self.fleet:
            self.tried.setdefault(name, set()).add(instance_id)
        self.waiting[name] = request
        self.waits[name] = Wait(request.arrived_at - (1 << 62), self.at, None)
        self.failed_bodies.add(body)
        self.failed_callers.add(agent_key_of(request))
        self.tell(Bounced(name, "why", body, **how))
        assert name in self.waiting or name in self.running or name not in self.returned

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(0, 40))
    def hear_of_progress(self, data, tokens):
        name = data.draw(st.sampled_from(sorted(self.running)))
        self.generated[name] = max(tokens, self.generated.get(name, 0))
        self.tell(Progressed({name: tokens, "stranger": 1}))

    @rule(
        name=st.sampled_from(INSTANCES),
        kv_used=st.none() | st.floats(0, 1),
        waiting_for_room=st.none() | st.integers(0, 2),
        preemptions=st.none() | st.integers(0, 3),
    )
    def hear_of_an_instance(self, name, **told):
        self.tell(InstanceStatus(name, **told))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel_waiting(self, data):
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[name], self.waits[name]
        self.forget_tries(name)
        self.note_end(name, ran=False)
        self.tell(Cancelled(name))

    @rule(name=st.text("xyz", min_size=1), end=st.sampled_from([Finished, Cancelled, FirstToken]))
    def hear_of_a_stranger(self, name, end):
        self.tell(end(name))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def hear_that_one_came_back_that_waits(self, data):
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        self.tell(Bounced(name, "why"))  # late news

    @rule(workflow=st.sampled_from(sorted(APPS)))
    def end_workflow(self, workflow):
        self.begun.pop(workflow, None)
        self.uses.pop(workflow, None)
        self.tell(WorkflowEnded("default", workflow))

    @precondition(lambda self: not self.is_cancelled)
    @rule()
    def cancel_workflow(self):
        self.is_cancelled = True
        self.begun.pop(CANCELLED, None)
        self.uses.pop(CANCELLED, None)
        self.tell(WorkflowEnded("default", CANCELLED, cancelled=True))
        here = [*self.waiting.values(), *(request for request, _ in self.running.values())]
        assert CANCELLED not in [request.workflow_id for request in here]

    @rule(
        app=st.sampled_from(["app", "other", POOLED_AGENT]),
        agent=st.sampled_from(["x", "y", POOLED_AGENT]),
        seconds=st.integers(1, 50),
        part=st.sampled_from(["profile", "model", "ranks", "forgotten"]),
    )
    def learn(self, app, agent, seconds, part):
        tenant = POOLED_AGENT if app == POOLED_AGENT else "default"
        if part == "profile":
            work = {"remaining_stages": float(seconds), "app": app, "tenant": tenant}
            self.tell(ProfilesLearnt((learnt.profile(agent, [seconds * SECOND], **work),)))
        elif part == "model":
            self.tell(ProfilesLearnt(models=(remaining_model(tenant, app, agent, seconds),)))
        elif part == "forgotten":
            self.tell(ProfilesLearnt(forgotten=((tenant, app, agent),)))
        else:
            self.tell(ProfilesLearnt(ranks=(AgentRank(tenant, app, agent, float(seconds)),)))

    @rule(us=st.integers(0, MAX_WAIT_US))
    def time_passes(self, us):
        self.at += us
        self.tell(Tick())
        for request in self.waiting.values():
            assert request.arrived_at + MAX_WAIT_US > self.at

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
            booked = sum(r.prompt_tokens for r, where in self.running.values() if where == name)
            instance = build.instance(
                name, models=models, seqs=max(seqs, running_here), kv=max(kv, booked)
            )
        self.fleet[name] = instance
        self.tell(InstanceJoined(instance))

    @precondition(lambda self: len(self.fleet) > 1 or self.waiting)
    @rule(data=st.data())
    def leave(self, data):
        name = data.draw(st.sampled_from(sorted(self.fleet)))
        del self.fleet[name]
        self.tried = {each: left for each, had in self.tried.items() if (left := had - {name})}
        self.tell(InstanceLeft(name))

    @invariant()
    def nothing_is_lost_or_doubled(self):
        queued = [r.id for q in self.balancer._queues._queues.values() for r in q.requests()]
        assert sorted(queued) == sorted(self.waiting)
        assert len(self.balancer.ledger) == len(self.running)
        for name, (_, instance_id) in self.running.items():
            assert self.balancer.ledger.instance_of(name) == instance_id

    @invariant()
    def nothing_waits_beside_an_instance_with_room_but_for_one_that_is_overdue(self):
        for request in self.waiting.values():
            if self.is_aside(request.id):
                continue
            for instance in self.fleet.values():
                if self.can_ever_hold(instance, request) and self.has_room(instance, request):
                    assert any(
                        self.can_ever_hold(instance, overdue) and self.goes_before(overdue, request)
                        for overdue in self.overdue()
                    ), (request.id, instance.id)

    def is_aside(self, name):
        return self.balancer.faults.is_aside(name)

    @invariant()
    def whoever_runs_alone_is_alone(self):
        quarantine = self.balancer.faults.quarantine
        if quarantine.alone is not None:
            where = self.balancer.ledger.instance_of(quarantine.alone)
            here = {n for n, (_, there) in self.running.items() if there == where}
            assert here <= self.ran_alone | {quarantine.alone}

    def goes_before(self, overdue, request):
        later = self.waits[overdue.id].seq > self.waits[request.id].seq
        return overdue is not request and not (later and request in self.overdue())

    def has_room(self, instance, request):
        """By its prompt; of what others expect it to grow to, nothing is said here."""
        here = [r for r, where in self.running.values() if where == instance.id]
        if len(here) >= instance.max_num_seqs:
            return False
        looked_at = self.balancer._dispatching.drained_at
        if not self.balancer.faults.circuits.admits_call(instance.id, len(here), looked_at):
            return False
        quarantine = self.balancer.faults.quarantine
        if quarantine and quarantine.room == instance.id:
            return False
        suspended = self.balancer.ledger.health.is_suspended(instance.id, self.at)
        if not here or (instance.kv_tokens is None and not suspended):
            return True
        if self.placement not in NOW:
            return False
        if instance.kv_tokens is None:
            return True
        held = self.balancer.ledger.held_tokens(instance.id, self.at)
        return held + request.prompt_tokens <= NOW[self.placement] * instance.kv_tokens

    def overdue(self):
        """By the queue's word; the model checks that below."""
        return [
            request
            for request in self.waiting.values()
            if self.balancer._queues.of(request)._waiting[request.id].overdue_at is not None
        ]

    @invariant()
    def nobody_is_overdue_whose_workflow_has_not_waited_for_as_long_as_it_may(self):
        for request in self.overdue():
            wait = self.waits[request.id]
            if request.id in self.returned or request.id in self.suspected:
                continue  # it has had its turn, or may have had
            waited = self.first_came[request.workflow_id] + GRACE_US <= self.at
            impatient = wait.patient_until is not None and wait.patient_until <= self.at
            assert waited or impatient, request.id

    @invariant()
    def who_has_waited_for_as_long_as_its_workflow_may_is_overdue(self):
        overdue = [request.id for request in self.overdue()]
        for name, wait in self.waits.items():
            late = wait.due_at <= self.balancer._dispatching.drained_at
            assert not late or name in overdue or self.is_aside(name)

    @invariant()
    def no_workflow_has_more_than_its_budget(self):
        for name, (use, _) in self.use_of.items():
            assert self.budget.calls is None or use.calls <= self.budget.calls, name
            if self.budget.wall_us is not None and any(use is each for each in self.uses.values()):
                assert self.at < use.began_at + self.budget.wall_us, name

    @invariant()
    def whoever_waits_stands_in_the_queue_by_what_is_known_now(self):
        for queue in self.balancer._queues._queues.values():
            entries = queue.by_key._heap + queue.by_key._old + queue._front._entries
            for name, waiting in queue._waiting.items():
                alive = [e for e in entries if e[0] is waiting.key and e[1:] == (waiting.seq, name)]
                assert len(alive) == (0 if self.is_aside(name) else 1)
                assert waiting.aside == self.is_aside(name)
                if self.is_aside(name):
                    continue
                if not queue.by_key.moving:
                    assert waiting.key == self.policy.key(
                        waiting.request, self.policy.state(waiting.request)
                    )

    @invariant()
    def what_is_left_of_a_workflow_is_the_sum_over_its_calls(self):
        for together in self.estimates._together.values():
            calls = list(together.standings.values())
            left_us = self.estimates.left_us(calls[0].request)
            longest = max(calls, key=lambda call: self.estimates.remaining_us(call.request))
            others_us = sum(call.call_us for call in calls if call is not longest)
            assert left_us == pytest.approx(longest.remaining_us + others_us)

    @invariant()
    def nothing_is_kept_of_those_who_are_gone(self):
        instances = set(self.fleet) | {where for _, where in self.running.values()}
        here = {**self.waiting, **{name: request for name, (request, _) in self.running.items()}}
        workflows = {("default", request.workflow_id) for request in here.values()}
        ledger = self.balancer.ledger
        for kept in (
            ledger._flights,
            ledger.prompts._prompts,
            ledger._versions,
            ledger.served.speeds,
        ):
            assert set(kept) <= instances
        for kept in (ledger.instances, ledger.health._told, ledger.prefixes._caches):
            assert set(kept) <= set(self.fleet)
        assert sum(row.users for row in ledger.curves._rows.values()) == len(self.running)
        assert set(self.balancer._workflow_of) == set(here)
        assert set(self.balancer._admission.tried) == set(self.tried) <= set(here)
        assert list(self.balancer._admission._newcomers._waiting) == self.newcomers
        assert set(self.balancer.faults.circuits._circuits) <= set(self.fleet)
        assert set(self.balancer.faults._keys) <= set(here)
        quarantine = self.balancer.faults.quarantine
        held = {name for each in quarantine._unheard.values() for name in each.held}
        assert held | set(quarantine._suspects) <= set(self.waiting)
        assert not held & set(quarantine._suspects)
        assert quarantine.alone is None or quarantine.alone in self.running
        assert not quarantine._freed
        for queue in self.balancer._queues._queues.values():
            bounced = set(self.returned) | self.suspected
            assert set(queue._bounced) == set(queue._waiting) & bounced
        assert set(self.estimates._standings) == set(here)
        assert set(self.estimates._together) == workflows
        assert set(self.estimates.positions._calls) == set(here)

    @invariant()
    def it_is_woken_for_the_next_to_be_given_up_and_for_the_next_instance_to_be_tried(self):
        tick_at = self.balancer.tick_at
        if self.budget.wall_us is not None:
            ends = [each.began_at + self.budget.wall_us for each in self.uses.values()]
            to_come = [each for each in ends if each > self.at]
            assert not to_come or tick_at <= min(to_come)
        elif not self.waiting:
            assert tick_at is None
        if not self.waiting:
            return
        oldest = min(request.arrived_at for request in self.waiting.values())
        assert tick_at <= oldest + MAX_WAIT_US
        for circuit in self.balancer.faults.circuits._circuits.values():
            assert (
                tick_at <= circuit.open_until
                or circuit.open_until <= self.balancer._dispatching.drained_at
            )


def remaining_model(tenant, app, agent, logarithm):
    return RemainingModel(
        tenant=tenant,
        app=app,
        samples=100,
        intercept=float(logarithm),
        weights=(-1.0, *(0.1,) * (FEATURES - 1)),
        lowest=(-100.0,) * FEATURES,
        highest=(100.0,) * FEATURES,
        agents={agent: 1.0},
        residuals=tuple(n / QUANTILES for n in range(QUANTILES)),
    )


TestBalancer = BalancerMachine.TestCase
TestBalancer.settings = examples(200, steps=60)


def test_the_model_itself_notices_a_lost_request():
    machine = BalancerMachine()
    machine.start("least-kv", "fcfs", Budget(), known=False)
    machine.running.clear()

    with pytest.raises(AssertionError):
        machine.nothing_is_lost_or_doubled()
