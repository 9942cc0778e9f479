import pytest

from kairos.core import (
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
    ModelNotFound,
    NoInstance,
    ProfilesLearnt,
    Progressed,
    QueueFull,
    Refuse,
    Tick,
    WorkflowEnded,
)
from kairos.core.core_names import MOVED
from kairos.core.errors import BudgetExceeded, NeverFits
from kairos.core.scheduler.guard import NO_GUARD
from kairos.core.scheduler.priority import priority_of
from kairos.core.workflow_tracker import IDLE_US
from tests.support.core import learnt
from tests.support.simulate import build


def arrive(balancer, name, at=0, **fields):
    return balancer.handle(Arrived(build.request(name, at=at, **fields)), at)


def test_a_request_goes_to_an_idle_instance_at_once():
    balancer = build.balancer(build.instance("a"))

    assert build.placed(arrive(balancer, "r")) == [("r", "a")]


def test_a_request_waits_until_a_sequence_slot_is_free():
    balancer = build.balancer(build.instance("a", seqs=1))

    assert build.placed(arrive(balancer, "first")) == [("first", "a")]
    assert arrive(balancer, "second", at=1) == []
    assert build.placed(balancer.handle(Finished("first"), 2)) == [("second", "a")]


@pytest.mark.parametrize("end", [Finished("r0"), Failed("r0", "broken"), Cancelled("r0")])
def test_memory_comes_back_however_a_call_ends(end):
    balancer = build.balancer(build.instance("a", kv=15))
    arrive(balancer, "r0")

    assert arrive(balancer, "r1") == []
    assert build.placed(balancer.handle(end, 1)) == [("r1", "a")]


def test_waiting_requests_leave_in_order_of_arrival():
    balancer = build.balancer(build.instance("a", seqs=1))
    arrive(balancer, "running")
    for name, at in (("first", 1), ("second", 1), ("third", 3)):
        arrive(balancer, name, at=at)

    order = []
    for at, done in enumerate(["running", "first", "second"], start=4):
        order += [command.request_id for command in balancer.handle(Finished(done), at)]
    assert order == ["first", "second", "third"]


def test_a_request_too_large_for_the_room_left_does_not_hold_back_a_smaller_one():
    balancer = build.balancer(build.instance("a", kv=100))
    arrive(balancer, "running", prompt=40, completion=20)

    assert arrive(balancer, "large", prompt=70, completion=20) == []
    assert build.placed(arrive(balancer, "small", at=1)) == [("small", "a")]


def test_a_queue_that_is_stuck_does_not_hold_back_another_models():
    balancer = build.balancer(build.instance("a", seqs=1), build.instance("b", models=("n",)))
    arrive(balancer, "running")

    assert arrive(balancer, "stuck", at=1) == []
    assert build.placed(arrive(balancer, "other", at=2, model="n")) == [("other", "b")]


def test_queues_of_two_models_share_an_instance_in_order_of_arrival():
    balancer = build.balancer(build.instance("a", models=("m", "n"), seqs=1))
    arrive(balancer, "running")
    for name, model in (("1", "m"), ("2", "n"), ("3", "n"), ("4", "m"), ("5", "n")):
        arrive(balancer, name, at=7, model=model)  # all at the same microsecond

    order = ["running"]
    for _ in range(5):
        [dispatch] = balancer.handle(Finished(order[-1]), 8)
        order.append(dispatch.request_id)
    assert order == ["running", "1", "2", "3", "4", "5"]


def test_a_request_without_a_model_goes_anywhere():
    balancer = build.balancer(build.instance("a", models=("n",)))

    assert build.placed(arrive(balancer, "r", model=None)) == [("r", "a")]


def test_a_model_that_never_was_is_not_found_and_one_that_is_away_is_unavailable():
    balancer = build.balancer(build.instance("a"), build.instance("b", models=("n",)))
    balancer.handle(InstanceLeft("b"), 1)

    with pytest.raises(ModelNotFound, match="'x' does not exist here; served: m, n"):
        arrive(balancer, "r", at=1, model="x")
    with pytest.raises(NoInstance, match="'n'"):
        arrive(balancer, "r", at=1, model="n")
    balancer.handle(InstanceLeft("a"), 2)
    with pytest.raises(NoInstance, match="this request"):
        arrive(balancer, "r", at=2, model=None)


def test_before_any_instance_joined_no_model_is_called_unknown():
    with pytest.raises(NoInstance):
        arrive(build.balancer(), "r", model="x")


def test_a_prompt_larger_than_every_instance_is_refused_with_its_numbers():
    balancer = build.balancer(build.instance("a", kv=50), build.instance("b", kv=80))

    with pytest.raises(NeverFits, match="at least 81 KV tokens; the largest instance holds 80"):
        arrive(balancer, "r", prompt=81, least_prompt_tokens=81)
    assert balancer.waiting == 0
    assert build.placed(arrive(balancer, "r", prompt=80, completion=999)) == [("r", "b")]


def test_a_prompt_that_is_estimated_to_be_larger_has_the_largest_instance_alone():
    balancer = build.balancer(build.instance("a", kv=50), build.instance("b", kv=80))

    assert build.placed(arrive(balancer, "r", prompt=10_000, least_prompt_tokens=80)) == [
        ("r", "b")
    ]
    arrive(balancer, "s", prompt=10_000)
    assert balancer.waiting == 1
    assert build.placed(arrive(balancer, "t", prompt=10)) == [("t", "a")]
    assert build.placed(balancer.handle(Finished("r"), 1)) == [("s", "b")]


def test_where_the_largest_instance_leaves_the_next_has_what_was_estimated_too_long_for_it():
    balancer = build.balancer(build.instance("a", kv=50), build.instance("b", kv=80))
    arrive(balancer, "first", prompt=80)
    arrive(balancer, "long", prompt=80)
    arrive(balancer, "surely", prompt=80, least_prompt_tokens=60)

    commands = balancer.handle(InstanceLeft("b"), 1)
    assert {type(each): each.request_id for each in commands} == {
        Refuse: "surely",
        Dispatch: "long",
    }
    balancer.handle(Finished("long"), 2)
    assert build.placed(balancer.handle(Bounced("first", "why"), 2)) == [("first", "a")]


def test_a_full_queue_refuses_and_keeps_what_it_has():
    balancer = build.balancer(build.instance("a", seqs=1), max_waiting=1)
    arrive(balancer, "running")
    arrive(balancer, "waiting", at=1)

    with pytest.raises(QueueFull, match="1 requests are waiting"):
        arrive(balancer, "refused", at=2)
    assert build.placed(balancer.handle(Finished("running"), 3)) == [("waiting", "a")]


def test_repeated_and_late_news_changes_nothing():
    balancer = build.balancer(build.instance("a", seqs=1))
    arrive(balancer, "r")
    arrive(balancer, "waiting")

    for repeated in (Arrived(build.request("r")), Arrived(build.request("waiting"))):
        assert balancer.handle(repeated, 1) == []
    assert balancer.waiting == 1
    for news in (Finished("who"), Cancelled("who"), FirstToken("r"), InstanceLeft("who")):
        assert balancer.handle(news, 2) == []
    assert balancer.handle(WorkflowEnded("default", "w-r"), 2) == []


def test_a_waiting_request_that_is_cancelled_is_never_dispatched():
    balancer = build.balancer(build.instance("a", seqs=1))
    arrive(balancer, "running")
    arrive(balancer, "waiting")

    assert balancer.handle(Cancelled("waiting"), 1) == []
    assert balancer.handle(Finished("running"), 2) == []
    assert balancer.waiting == 0


def test_an_instance_that_joins_takes_what_waits():
    balancer = build.balancer(build.instance("a", seqs=1))
    arrive(balancer, "running")
    arrive(balancer, "waiting")

    assert build.placed(balancer.handle(InstanceJoined(build.instance("b")), 1)) == [
        ("waiting", "b")
    ]


def test_an_instance_that_left_gets_nothing_more_and_what_runs_there_still_counts_when_it_returns():
    balancer = build.balancer(build.instance("a", seqs=1))
    arrive(balancer, "running")
    balancer.handle(InstanceLeft("a"), 1)

    assert balancer.handle(InstanceJoined(build.instance("a", seqs=1)), 2) == []
    assert arrive(balancer, "waiting", at=3) == []
    assert build.placed(balancer.handle(Finished("running"), 4)) == [("waiting", "a")]


def test_when_nothing_is_left_that_could_serve_them_waiting_requests_are_refused():
    balancer = build.balancer(
        build.instance("small", seqs=1, kv=30), build.instance("large", seqs=1, kv=90)
    )
    arrive(balancer, "r0")
    arrive(balancer, "r1", prompt=70)
    arrive(balancer, "long", at=1, prompt=70, least_prompt_tokens=31)
    arrive(balancer, "short", at=1, prompt=20)

    assert balancer.handle(InstanceLeft("large"), 2) == [Refuse("long", "m")]  # for certain
    assert balancer.handle(InstanceLeft("small"), 3) == [Refuse("short", "m")]


def test_an_instance_that_serves_another_model_now_strands_those_who_waited_for_the_old():
    balancer = build.balancer(build.instance("a", seqs=1))
    arrive(balancer, "running")
    arrive(balancer, "waiting")

    changed = InstanceJoined(build.instance("a", seqs=1, models=("n",)))
    assert balancer.handle(changed, 1) == [Refuse("waiting", "m")]


def test_time_never_runs_backwards():
    balancer = build.balancer(build.instance("a"))
    arrive(balancer, "r", at=5)

    with pytest.raises(AssertionError, match="4 is before 5"):
        balancer.handle(Finished("r"), 4)


@pytest.mark.parametrize("placement", ["time-slot", "kairos"])
def test_a_need_above_the_whole_memory_is_tried_on_an_idle_instance_only(placement):
    balancer = build.balancer(build.instance("a", kv=100), placement=placement)
    arrive(balancer, "small")

    assert arrive(balancer, "long", prompt=50, completion=500) == []
    assert build.placed(balancer.handle(Finished("small"), 1)) == [("long", "a")]
    assert arrive(balancer, "next", at=2, prompt=1, completion=1) == []


def large_one_overdue(balancer):
    """The one instance for its model has too little room for `large`, which is overdue."""
    arrive(balancer, "running", prompt=40, completion=20)
    assert arrive(balancer, "large", prompt=70) == []
    balancer.handle(Tick(), 60)


def test_room_is_kept_for_one_that_is_overdue_against_other_models_too():
    both = build.instance("a", models=("m", "n"), kv=100)
    balancer = build.balancer(
        both, build.instance("b", models=("n",)), guard=build.overdue_after(50)
    )
    large_one_overdue(balancer)

    assert build.placed(arrive(balancer, "elsewhere", at=60, model="n")) == [("elsewhere", "b")]
    balancer.handle(InstanceLeft("b"), 61)
    assert arrive(balancer, "small", at=62, model="n") == []
    released = balancer.handle(Finished("running"), 63)
    assert build.placed(released) == [("large", "a"), ("small", "a")]


def test_beside_the_instances_that_are_kept_for_one_that_is_overdue_the_others_go_on():
    both = {"models": ("m", "n")}
    balancer = build.balancer(
        build.instance("large", kv=100, **both),
        build.instance("small", kv=50, **both),
        guard=build.overdue_after(50),
    )
    large_one_overdue(balancer)

    for name, model in (("next", "m"), ("other model's", "n")):
        assert build.placed(arrive(balancer, name, at=61, model=model)) == [(name, "small")]


def test_without_the_bound_the_policy_alone_decides():
    balancer = build.balancer(build.instance("a", seqs=1), policy="fcfs-app", guard=NO_GUARD)
    arrive(balancer, "running0")
    arrive(balancer, "young", workflow_started_at=9)
    for n in range(50):
        arrive(balancer, f"running{n + 1}", workflow_started_at=0)
        [dispatch] = balancer.handle(Finished(f"running{n}"), 0)
        assert dispatch.request_id == f"running{n + 1}"


def test_a_workflow_of_which_a_call_is_given_up_stands_by_those_that_are_left():
    balancer = build.balancer(build.instance("a", seqs=1), policy="kairos", max_wait_us=100)
    arrive(balancer, "running")
    arrive(balancer, "branch", workflow_id="w", completion=20)
    arrive(balancer, "other", at=70, completion=30)
    arrive(balancer, "another branch", at=80, workflow_id="w", completion=20)

    assert [each.request_id for each in balancer.handle(Tick(), 100)] == ["branch"]
    released = balancer.handle(Finished("running"), 101)
    assert build.placed(released) == [("another branch", "a")]


def test_what_a_call_took_and_said_is_known_of_its_workflow():
    balancer = build.balancer(build.instance("a", seqs=1))
    arrive(balancer, "running")
    arrive(balancer, "r", at=10, workflow_id="w")
    balancer.handle(Finished("running"), 40)
    balancer.handle(Finished("r", 10, 77), 100)
    arrive(balancer, "next", at=100, workflow_id="w")

    assert balancer.estimates.positions.attained(("default", "w")) == (60, 30)
    position = balancer.estimates._standings["next"].position
    assert (position.served_us, position.last_completion_tokens) == (60, 77)


def test_a_dispatch_says_what_was_expected_and_where_its_agent_stood():
    balancer = build.balancer(build.instance("a"), policy="kairos")
    ranks = (AgentRank("default", "app", "x", 0.25),)
    known = learnt.profile("x", [7 * SECOND], app="app", tenant="default")
    balancer.handle(ProfilesLearnt((known,), ranks=ranks), 0)

    [dispatch] = arrive(balancer, "r", app="app", agent="x")
    assert (dispatch.remaining_us, dispatch.rank) == (7 * SECOND, 0.25)


def test_a_workflow_that_fans_out_stands_by_all_its_calls_from_then_on():
    balancer = build.balancer(build.instance("a", seqs=1), policy="kairos")
    arrive(balancer, "running")
    arrive(balancer, "branch", at=1, workflow_id="w", completion=20)
    arrive(balancer, "other", at=2, completion=30)
    arrive(balancer, "another branch", at=3, workflow_id="w", completion=20)

    assert build.placed(balancer.handle(Finished("running"), 4)) == [("other", "a")]


def test_when_the_one_for_which_room_was_kept_is_given_up_those_behind_it_go():
    balancer = build.balancer(
        build.instance("a", kv=100), max_wait_us=100, guard=build.overdue_after(50)
    )
    large_one_overdue(balancer)
    assert arrive(balancer, "small", at=61) == []

    refused, dispatched = balancer.handle(Tick(), 100)
    assert refused == Refuse("large", "m", "waited_too_long")
    assert (dispatched.request_id, dispatched.reason) == ("small", "first")


def test_a_request_is_overdue_against_other_models_that_the_policy_prefers():
    both = build.instance("a", models=("m", "n"), seqs=1)
    balancer = build.balancer(both, policy="fcfs-app", guard=build.overdue_after(50))
    arrive(balancer, "running")
    arrive(balancer, "old", at=1, model="m", workflow_started_at=9)
    for at in (2, 3):
        arrive(balancer, f"preferred{at}", at=at, model="n", workflow_started_at=0)

    assert build.placed(balancer.handle(Finished("running"), 50)) == [("preferred2", "a")]
    [old] = balancer.handle(Finished("preferred2"), 51)
    assert (old.request_id, old.reason) == ("old", "overdue")


def test_a_call_of_a_workflow_that_is_said_to_have_ended_stands_as_one_of_a_new_one():
    balancer = build.balancer(build.instance("a", seqs=1), policy=MOVED["las"])
    arrive(balancer, "served", workflow_id="w")
    balancer.handle(Finished("served"), 9 * SECOND)
    arrive(balancer, "running", at=9 * SECOND)
    arrive(balancer, "rest", at=9 * SECOND, workflow_id="w")
    arrive(balancer, "new", at=10 * SECOND)
    balancer.handle(WorkflowEnded("default", "w"), 11 * SECOND)

    assert build.placed(balancer.handle(Finished("running"), 12 * SECOND)) == [("rest", "a")]


def test_a_step_that_is_full_of_prompts_takes_the_next_when_a_first_token_comes():
    balancer = build.balancer(build.instance("a", max_num_batched_tokens=100))
    arrive(balancer, "first", prompt=100)

    assert arrive(balancer, "second", prompt=50, at=1) == []
    assert build.placed(balancer.handle(FirstToken("first"), 2)) == [("second", "a")]


def test_how_far_calls_are_decides_what_fits():
    balancer = build.balancer(build.instance("a", kv=100))
    arrive(balancer, "running", prompt=40)
    balancer.handle(Progressed({"running": 50}), 1)

    assert arrive(balancer, "next", at=1, prompt=20) == []
    assert build.placed(balancer.handle(Finished("running"), 2)) == [("next", "a")]


def test_an_engine_that_orders_by_priority_is_told_of_the_work_left_and_who_is_overdue():
    balancer = build.balancer(
        build.instance("a", seqs=1, priority=True), guard=build.overdue_after(50)
    )
    [running] = arrive(balancer, "running", completion=10)
    assert running.priority == priority_of(running.remaining_us, "first") > 0
    arrive(balancer, "waits", at=1)
    [overdue] = balancer.handle(Finished("running"), 60)
    assert (overdue.reason, overdue.priority) == ("overdue", 0)

    [by_arrival] = arrive(build.balancer(build.instance("b")), "r")
    assert by_arrival.priority is None


def test_a_dispatch_says_how_much_of_the_prompt_is_expected_to_be_cached():
    balancer = build.balancer(build.instance("a", kv=1000))
    alike = {"prompt": 200, "prefix": (1, 2), "prefix_units": 200}
    [first] = arrive(balancer, "first", **alike)
    balancer.handle(Finished("first", 200, 5, 0), 1)
    [second] = arrive(balancer, "second", at=2, **alike)
    assert (first.cached_tokens, second.cached_tokens) == (0, 128)


@pytest.mark.parametrize(("backfill", "goes"), [(0, []), (1, []), (2, [("small", "a")])])
def test_no_more_are_passed_over_than_is_said(backfill, goes):
    balancer = build.balancer(build.instance("a", kv=100), backfill=backfill)
    arrive(balancer, "running", prompt=60)
    for name in ("large", "large too"):
        assert arrive(balancer, name, prompt=90) == []
    assert build.placed(arrive(balancer, "small", prompt=10)) == goes


def test_a_full_queue_says_when_a_tenth_of_it_will_have_gone():
    balancer = build.balancer(build.instance("i", seqs=1), max_waiting=40)
    arrive(balancer, "running")
    for n in range(40):
        arrive(balancer, f"w{n}", at=1)
    for n in range(20):  # one in ten seconds
        name = "running" if n == 0 else f"w{n - 1}"
        balancer.handle(Finished(name), (n + 1) * 10 * SECOND)
        arrive(balancer, f"more{n}", at=(n + 1) * 10 * SECOND)

    with pytest.raises(QueueFull) as refused:
        arrive(balancer, "late", at=200 * SECOND)
    assert refused.value.retry_after_s == pytest.approx(40, rel=0.1)


def test_a_queue_that_was_quick_and_is_empty_says_nothing_of_one_that_is_full():
    other = build.instance("other", models=("quick",), seqs=1)
    balancer = build.balancer(build.instance("i", seqs=1), other, max_waiting=40)
    for n in range(10):
        arrive(balancer, f"q{n}", at=n, model="quick")
    for n in range(10):
        balancer.handle(Finished(f"q{n}"), 10 + n)
    for n in range(41):
        arrive(balancer, f"w{n}", at=20)
    for n in range(3):  # one in ten seconds
        balancer.handle(Finished(f"w{n}"), n * 10 * SECOND + 21)
        arrive(balancer, f"more{n}", at=n * 10 * SECOND + 21)

    with pytest.raises(QueueFull) as refused:
        arrive(balancer, "late", at=20 * SECOND + 21)
    assert refused.value.retry_after_s == pytest.approx(40, rel=0.1)


def test_a_refused_call_leaves_the_balancer_as_it_was():
    """It is not logged, so whoever replays the log does not hear of it."""
    balancer = build.balancer(build.instance("a", seqs=1), policy="kairos", max_waiting=400)
    for n in range(401):
        balancer.handle(Arrived(build.request(f"r{n}", workflow_id=f"w{n}")), 10)
    balancer.handle(ProfilesLearnt(), 20)
    [queue] = balancer._queues._queues.values()
    to_renew = list(queue.by_key._old)
    assert to_renew

    with pytest.raises(QueueFull):
        balancer.handle(Arrived(build.request("late")), 30 + IDLE_US)

    assert queue.by_key._old == to_renew
    assert balancer.at == 20
    assert balancer.waiting == 400
    assert len(balancer.estimates.positions) == 401


def test_a_workflow_that_fell_silent_begins_its_budget_anew_although_nobody_came_since():
    balancer = build.balancer(build.instance("a"), budget=Budget(calls=1))
    balancer.handle(Arrived(build.request("first", workflow_id="w")), 0)
    balancer.handle(Finished("first"), 1)
    with pytest.raises(BudgetExceeded):
        balancer.handle(Arrived(build.request("second", workflow_id="w")), IDLE_US)

    again = balancer.handle(Arrived(build.request("third", workflow_id="w")), 1 + IDLE_US)

    assert build.placed(again) == [("third", "a")]


@pytest.mark.interpreted
def test_a_fact_that_can_change_no_decision_asks_nothing_of_instances(monkeypatch):
    balancer = build.balancer(build.instance("a"), placement="kairos")
    balancer.handle(Arrived(build.request("r")), 1)
    monkeypatch.setattr(balancer.ledger.served, "serving", None)

    assert balancer.handle(FirstToken("r"), 2) == []
    assert balancer.handle(Progressed({"r": 3}), 3) == []
    assert balancer.handle(InstanceStatus("a", kv_used=0.1), 4) == []
    assert balancer.handle(Finished("r"), 5) == []


def test_what_waits_is_counted_as_it_comes_and_goes():
    balancer = build.balancer(build.instance("a", seqs=1, models=("m", "n")))
    for n, model in enumerate("mmnnm"):
        balancer.handle(Arrived(build.request(f"r{n}", model=model)), n)
    for at, fact in enumerate([Cancelled("r2"), Finished("r0"), Failed("r3", "x"), Tick()], 10):
        balancer.handle(fact, at)
        queues = balancer._queues
        assert balancer.waiting == sum(map(len, queues._queues.values()))
        assert list(queues.open()) == [m for m, queue in queues._queues.items() if queue]
