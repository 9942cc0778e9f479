"""A pool in virtual time, on histories small enough to compute by hand."""

import pytest
from msgspec.structs import replace

from kairos.core import (
    SECOND,
    Arrived,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    InvalidRequest,
    ProfilesLearnt,
    QueueFull,
    StepCost,
    Tick,
    WorkflowEnded,
)
from kairos.simulate.clock import VirtualClock
from kairos.simulate.simulation import alone_us
from kairos.simulate.users import Users
from kairos.simulate.world import WorldEvent
from tests.support.simulate import build
from tests.support.simulate.worlds import (
    MS,
    call,
    dispatched,
    profile,
    ran,
    submission,
    told,
    world,
)


def test_three_workflows_on_two_instances_go_as_computed_by_hand():
    _, log = ran(
        [
            submission("a", call(3), call(2, gap_ms=5)),
            submission("b", call(10)),
            submission("c", call(4), at=2),
        ],
        instances=2,
    )

    assert told(log, Arrived, FirstToken, Finished, WorkflowEnded) == [
        (0, "Arrived", "a/0"),
        (0, "Arrived", "b/0"),
        (1, "FirstToken", "a/0"),
        (1, "FirstToken", "b/0"),
        (2, "Arrived", "c/0"),
        (3, "Finished", "a/0"),
        (4, "FirstToken", "c/0"),
        (7, "Finished", "c/0"),
        (7, "WorkflowEnded", "c"),
        (8, "Arrived", "a/1"),
        (9, "FirstToken", "a/1"),
        (10, "Finished", "a/1"),  # at the same instant the first instance is heard first
        (10, "WorkflowEnded", "a"),
        (10, "Finished", "b/0"),
        (10, "WorkflowEnded", "b"),
    ]
    assert dispatched(log) == [
        (0, "a/0", "i0"),
        (0, "b/0", "i1"),
        (3, "c/0", "i0"),
        (8, "a/1", "i0"),
    ]


def test_calls_of_a_group_go_at_once_and_the_next_waits_for_all_of_them():
    group = {"parallel_group": "g"}
    _, log = ran(
        [submission("w", call(2), call(3, **group), call(9, **group, gap_ms=1), call(1))],
        instances={"i": profile(seqs=4)},
    )

    assert told(log, Arrived) == [
        (0, "Arrived", "w/0"),
        (2, "Arrived", "w/1"),
        (3, "Arrived", "w/2"),
        (12, "Arrived", "w/3"),  # the second of the two ended at 12
    ]
    requests = {r.event.request.id: r.event.request for r in log if isinstance(r.event, Arrived)}
    assert requests["w/1"].parent_ids == ("w/0",)
    assert requests["w/3"].parent_ids == ("w/1", "w/2")
    assert {request.workflow_started_at for request in requests.values()} == {0}


def test_the_balancer_hears_what_a_gateway_knows_and_at_the_end_what_the_engine_tells():
    [first] = [submission("w", call(300, prompt=50, agent="writer", upstream="user"), at=2)]
    _, log = ran([first])
    _, of_replay = ran([first], tell_lengths=True)

    [request] = [r.event.request for r in log if isinstance(r.event, Arrived)]
    assert (request.app, request.agent, request.upstream) == ("app", "writer", "user")
    assert (request.prompt_tokens, request.completion_tokens) == (50, 256)
    assert (request.arrived_at, request.workflow_started_at) == (2 * MS, 2 * MS)
    [finished] = [r.event for r in log if isinstance(r.event, Finished)]
    assert finished == Finished("w/0", 50, 300, 0, 0, 0)
    [told_more] = [r.event.request for r in of_replay if isinstance(r.event, Arrived)]
    assert request.completion_limit is None
    assert told_more == replace(request, completion_limit=300)


def test_anonymous_calls_are_workflows_of_their_own_to_the_balancer_and_none_in_the_metrics():
    """A call that does not say whose it is: only who orders by that serves it otherwise."""
    workflows = [submission("a", call(3), call(2, gap_ms=5)), submission("b", call(10))]
    made, log = ran(workflows, anonymous=1.0)
    known, of_known = ran(workflows)

    requests = [r.event.request for r in log if isinstance(r.event, Arrived)]
    assert {each.workflow_id for each in requests} == {"a/0", "a/1", "b/0"}
    for each in requests:
        assert (each.app, each.agent, each.upstream, each.parent_ids) == (None, None, None, ())
        assert each.workflow_started_at == each.arrived_at
    ended = [r.event.workflow_id for r in log if isinstance(r.event, WorkflowEnded)]
    assert sorted(ended) == ["a", "a/0", "a/1", "b", "b/0"]
    assert dispatched(log) == dispatched(of_known)
    assert made.metrics.record() == known.metrics.record()


def test_so_many_calls_are_anonymous_always_the_same_ones():
    workflows = [submission(f"w{n}", call(1), at=n) for n in range(400)]

    def anonymous(share):
        _, log = ran(workflows, anonymous=share)
        arrived = [r.event.request for r in log if isinstance(r.event, Arrived)]
        return {each.id for each in arrived if each.agent is None}

    assert len(anonymous(0.3)) == pytest.approx(120, abs=30)
    assert anonymous(0.1) < anonymous(0.3)


def test_an_anonymous_call_that_fails_ends_what_it_was_alone():
    fails = [WorldEvent(at_us=2 * MS, what="fail", instance_id="i0")]
    made, log = ran([submission("a", call(9))], anonymous=1.0, happenings=fails)

    assert set(made.users.failed) == {"a"}
    assert [r.event.workflow_id for r in log if isinstance(r.event, WorkflowEnded)] == ["a/0", "a"]


def test_a_replay_tells_lengths_below_what_is_expected():
    _, log = ran([submission("w", call(7))], tell_lengths=True)
    request = log[1].event.request
    assert (request.completion_tokens, request.completion_limit) == (7, 7)


def test_prompts_that_begin_alike_say_so():
    _, log = ran(
        [
            submission("a", call(1, prompt=200, shared_prefix_tokens=130)),
            submission("b", call(1, prompt=300, shared_prefix_tokens=130), at=3),
        ]
    )
    a, b = (r.event.request for r in log if isinstance(r.event, Arrived))
    assert (len(a.prefix), len(b.prefix)) == (3, 4)  # marks at 64, 128, 192, 256
    assert (a.prefix_units, b.prefix_units) == (200, 300)
    assert a.prefix[:2] == b.prefix[:2]
    assert not {*a.prefix[2:]} & {*b.prefix[2:]}
    cached = [c.cached_tokens for r in log for c in r.commands if isinstance(c, Dispatch)]
    assert cached == [0, 128]


def test_what_is_cached_preempted_and_recomputed_is_told():
    prompt = [call(1, prompt=30, shared_prefix_tokens=20)]
    _, log = ran([submission("a", *prompt), submission("b", *prompt, at=5)])
    finished = [r.event for r in log if isinstance(r.event, Finished)]
    assert [each.cached_tokens for each in finished] == [0, 20]

    # Room for what two calls are expected to need, 266 tokens each, but not for the 310 of these.
    small = profile(seqs=2, kv=540)
    _, log = ran([submission(name, call(300)) for name in "ab"], instances={"i": small})
    finished = {r.event.request_id: r.event for r in log if isinstance(r.event, Finished)}
    assert finished["a/0"].preemptions == 0
    assert finished["b/0"].preemptions == 1
    assert finished["b/0"].recomputed_tokens > 0


def happening(at, what, instance="i0", **fields):
    return WorldEvent(at_us=at * MS, what=what, instance_id=instance, **fields)


def test_an_instance_that_leaves_ends_what_it_has_and_takes_no_more():
    _, log = ran(
        [
            submission("a", call(10)),
            submission("b", call(10), at=1),
            submission("c", call(1), at=6),
        ],
        instances=2,
        happenings=[happening(5, "leave"), happening(20, "join")],
    )

    assert (10, "Finished", "a/0") in told(log, Finished)
    assert dispatched(log) == [(0, "a/0", "i0"), (1, "b/0", "i1"), (11, "c/0", "i1")]
    assert told(log, InstanceLeft) == [(5, "InstanceLeft", "i0")]


def test_an_instance_joins_later_and_takes_what_waits():
    _, log = ran(
        [submission("a", call(10)), submission("b", call(10))],
        instances=2,
        happenings=[happening(30, "leave", "i1"), happening(4, "join", "i1")],
    )

    assert told(log, InstanceJoined) == [(0, "InstanceJoined", "i0"), (4, "InstanceJoined", "i1")]
    assert dispatched(log) == [(0, "a/0", "i0"), (4, "b/0", "i1")]


def test_calls_of_an_instance_that_fails_are_tried_again_a_second_later():
    made, log = ran(
        [submission("a", call(10), call(1))], instances=2, happenings=[happening(5, "fail")]
    )

    assert told(log, InstanceLeft, Failed, Arrived, Finished) == [
        (0, "Arrived", "a/0"),
        (5, "InstanceLeft", "i0"),
        (5, "Failed", "a/0"),
        (1005, "Arrived", "a/0"),
        (1015, "Finished", "a/0"),
        (1015, "Arrived", "a/1"),
        (1016, "Finished", "a/1"),
    ]
    attempts = [r.event.request.attempt for r in log if isinstance(r.event, Arrived)]
    assert attempts == [1, 2, 1]
    assert made.users.failed == {}
    assert made.users.retries == 1
    [failed] = [row for row in made.metrics.rows if row.outcome == "failed"]
    assert failed.wasted_tokens == 5
    assert made.metrics.record()["e2e_s"]["mean"] == 1.016


def test_what_ends_at_the_instant_of_a_failure_has_ended_and_the_rest_is_lost():
    made, log = ran(
        [submission("a", call(5)), submission("b", call(9))],
        instances={"i0": profile(seqs=2), "i1": profile()},
        placement="least-kv",
        happenings=[happening(5, "fail")],
    )
    assert dispatched(log)[0] == (0, "a/0", "i0")
    lost = [row for row in made.metrics.rows if row.outcome == "failed"]

    assert told(log, InstanceLeft, Finished)[0] == (5, "InstanceLeft", "i0")
    assert (5, "Finished", "a/0") in told(log, Finished)
    assert lost == []


def test_of_calls_that_run_together_each_lost_one_tells_what_it_had():
    made, _ = ran(
        [submission("a", call(5)), submission("b", call(9)), submission("c", call(9), at=2)],
        instances=[profile(seqs=3)],
        happenings=[happening(5, "fail"), happening(6, "join")],
    )
    rows = made.metrics.rows
    wasted = {row.request.id: row.wasted_tokens for row in rows if row.outcome == "failed"}

    assert wasted == {"b/0": 5, "c/0": 3}
    assert made.users.failed == {}


def test_a_workflow_whose_call_fails_for_good_is_counted_and_makes_no_further_calls():
    group = {"parallel_group": "g"}
    made, log = ran(
        [submission("a", call(9, **group), call(3000, **group), call(1))],
        instances={"i0": profile(), "i1": profile()},
        happenings=[happening(at, "fail") for at in (5, 1010, 2015)]
        + [happening(at, "join") for at in (6, 1015)],
        placement="least-kv",
    )

    assert list(made.users.failed) == ["a"]
    assert made.users.left == 0
    attempts = [r.event.request.attempt for r in log if isinstance(r.event, Arrived)]
    assert attempts == [1, 1, 2, 3]
    assert told(log, WorkflowEnded) == [(3000, "WorkflowEnded", "a")]  # when the other call ended


def test_of_a_workflow_that_failed_nothing_goes_on_but_what_is_under_way():
    """Call 0 is refused by its engine; 1 is under way, 2 waits for it, 3 comes after a gap."""
    asked = submission("w", call(5, prompt=60), call(5), call(5), call(5, gap_ms=2))
    waits_for = ((), (), (1,), ())
    asked = replace(asked, workflow=replace(asked.workflow, waits_for=waits_for))
    made, log = ran([asked], instances={"i": profile(max_model_len=60)})

    assert list(made.users.failed) == ["w"]
    assert told(log, Arrived) == [(0, "Arrived", "w/0"), (0, "Arrived", "w/1")]
    assert told(log, Finished, WorkflowEnded) == [(5, "Finished", "w/1"), (5, "WorkflowEnded", "w")]


def test_a_workflow_of_which_several_calls_fail_tells_why_the_first_did():
    group = {"parallel_group": "g"}
    made, _ = ran(
        [submission("w", call(5, prompt=60, **group), call(9, **group))],
        instances=[profile(seqs=2, max_model_len=60)],
        happenings=[happening(3, "fail")],
    )
    assert "60 prompt and 5 completion tokens" in made.users.failed["w"]


def test_where_no_instance_is_left_calls_are_refused_and_workflows_fail():
    made, log = ran(
        [submission("a", call(10)), submission("b", call(10)), submission("c", call(1), at=9)],
        happenings=[happening(5, "fail")],
    )

    assert set(made.users.failed) == {"a", "b", "c"}
    assert "no instance" in made.users.failed["c"]
    assert told(log, Failed) == [(5, "Failed", "a/0")]
    refused = [c.request_id for r in log for c in r.commands if not isinstance(c, Dispatch)]
    assert refused == ["b/0"]
    assert log[-1].at == 2009 * MS  # the last one's third attempt


def test_why_a_call_was_refused_for_good_is_told():
    """It waits behind another three times, and each time the instance leaves."""
    gone = [happening(at, what) for at in (5, 1010, 2015) for what in ("leave", "join")]
    made, _ = ran([submission("a", call(5000)), submission("b", call(1), at=1)], happenings=gone)

    assert list(made.users.failed) == ["b"]
    assert "no instance" in made.users.failed["b"]


class Refusing:
    """Takes calls, but the first so many of them."""

    def __init__(self, error, times):
        self.error, self.left, self.arrived = error, times, []

    def __call__(self, event):
        if isinstance(event, Arrived):
            self.arrived.append((event.request.arrived_at, event.request.attempt))
            if self.left:
                self.left -= 1
                raise self.error


def refused_by(error, times=9):
    gateway, clock = Refusing(error, times), VirtualClock()
    users = Users(clock, gateway, tell_lengths=False)
    users.expect(submission("w", call(1)))
    clock.run()
    return gateway.arrived, users


def test_a_full_queue_is_asked_again_when_it_says_and_a_bad_request_is_not_made_again():
    full = QueueFull(10_000)
    full.retry_after_s = 3
    arrived, users = refused_by(full, times=1)
    assert arrived == [(0, 1), (3 * SECOND, 2)]
    assert (users.left, users.failed, users.retries) == (1, {}, 1)  # it is under way

    arrived, users = refused_by(full)
    assert arrived == [(0, 1), (3 * SECOND, 2), (6 * SECOND, 3)]
    assert users.failed == {"w": str(full)}

    arrived, users = refused_by(InvalidRequest("no"))
    assert arrived == [(0, 1)]
    assert users.failed == {"w": "no"}


def test_a_call_names_as_many_of_those_it_waited_for_as_a_gateway_takes():
    fan = [call(1, parallel_group="g") for _ in range(40)]
    _, log = ran([submission("w", *fan, call(1))], instances=[profile(seqs=50)])

    requests = {r.event.request.id: r.event.request for r in log if isinstance(r.event, Arrived)}
    assert requests["w/40"].parent_ids == tuple(f"w/{n}" for n in range(8, 40))


def test_where_nothing_is_asked_for_nothing_runs():
    made, _ = ran([])

    assert made.clock.now() == 0


def test_a_call_that_has_waited_as_long_as_it_may_is_refused_and_tried_again():
    """One call takes 700 s; the other waits for 600 s, and then once more for 100 s."""
    long = profile(step=StepCost(fixed_us=SECOND), max_model_len=10_000)
    made, log = ran([submission("a", call(700)), submission("b", call(1), at=1)], instances=[long])

    assert made.users.failed == {}
    assert made.users.retries == 1
    assert [r.at for r in log if isinstance(r.event, Tick)] == [601 * SECOND]
    assert told(log, Arrived)[-1] == (602_000, "Arrived", "b/0")
    assert dispatched(log)[-1] == (700_000, "b/0", "i0")


def test_who_has_waited_too_long_is_looked_for_at_every_second():
    long = profile(step=StepCost(fixed_us=SECOND), max_model_len=10_000)
    _, log = ran([submission("a", call(700)), submission("b", call(1), at=1000)], instances=[long])

    assert [r.at for r in log if isinstance(r.event, Tick)] == [601 * SECOND]


def test_no_more_is_sent_to_an_instance_than_it_holds():
    engine = profile(seqs=9, kv=850)
    asked = [submission(name, call(2, prompt=200)) for name in "abcde"]

    _, log = ran(asked, instances=[engine], placement="round-robin")
    assert [at for at, _, _ in dispatched(log)] == [0, 0, 0, 0, 2]

    # Each is taken for one of 5.16 s, in which its answer would grow to as many thousand tokens.
    _, log = ran(asked, instances=[engine], placement="time-slot")
    assert [at for at, _, _ in dispatched(log)] == [0, 2, 4, 6, 8]


def test_a_workflow_that_is_silent_for_long_is_learnt_from_before_it_goes_on():
    _, log = ran([submission("w", call(5), call(5, gap_ms=700_000))])

    assert next(r.at for r in log if isinstance(r.event, ProfilesLearnt)) == 601 * SECOND


def test_an_instance_slows_down_and_is_itself_again():
    _, log = ran(
        [submission("a", call(10))],
        happenings=[happening(2, "slow", factor=3.0), happening(8, "slow", factor=1.0)],
    )

    assert told(log, Finished) == [(14, "Finished", "a/0")]  # 2 + 2 slow ones + 6


def test_a_failed_engine_comes_back_with_an_empty_cache_and_one_that_left_with_its_own():
    same = [call(1, prompt=30, shared_prefix_tokens=20)]
    submissions = [submission("a", *same), submission("b", *same, at=50)]
    away = {
        what: ran(submissions, happenings=[happening(10, what), happening(20, "join")])[1]
        for what in ("leave", "fail")
    }
    cached = {
        what: [r.event.cached_tokens for r in log if isinstance(r.event, Finished)]
        for what, log in away.items()
    }
    assert cached == {"leave": [0, 20], "fail": [0, 0]}


def test_a_call_that_its_engine_refuses_fails_at_once():
    short = {"i0": profile(max_model_len=20)}
    made, log = ran([submission("a", call(15)), submission("b", call(3))], instances=short)

    assert told(log, Failed) == [(0, "Failed", "a/0")]
    assert list(made.users.failed) == ["a"]
    assert told(log, Finished) == [(3, "Finished", "b/0")]


def test_a_run_that_is_stopped_keeps_what_has_ended():
    submissions = [submission(f"w{n}", call(1500), call(700), at=n * 400) for n in range(20)]
    log = []
    stopped = world(
        submissions,
        instances=2,
        observers=(log.append,),
        on_second=lambda here: here.clock.stop() if here.clock.now() > 9_500 * MS else None,
    )
    stopped.run()
    stopped.metrics.drop_open()

    ended = {whose for _, _, whose in told(log, WorkflowEnded)}
    assert 0 < len(ended) < 20
    assert {row.request.workflow_id for row in stopped.metrics.rows} == ended
    assert stopped.metrics.record()["calls"] == 2 * len(ended)


@pytest.mark.parametrize("policy", ["kairos", "fcfs"])
def test_a_log_replayed_through_a_fresh_balancer_gives_the_same_decisions(policy):
    submissions = [
        submission(
            f"w{n}", call(50 + n % 7 * 30), call(20 + n % 3 * 99), at=n * 100, app=f"a{n % 2}"
        )
        for n in range(60)
    ]
    _, log = ran(
        submissions,
        instances=2,
        policy=policy,
        happenings=[happening(2000, "fail"), happening(4000, "join")],
    )

    learnt_at = [r.at for r in log if isinstance(r.event, ProfilesLearnt)]
    assert learnt_at
    assert all(at % SECOND == 0 for at in learnt_at)
    fresh = build.balancer(policy=policy, placement="round-robin")
    assert build.replay(log, fresh) == log


def test_every_workflow_ends_and_the_engines_computed_what_the_facts_say():
    submissions = [
        submission(f"w{n}", call(200 + n * 7, prompt=40 + n), call(400, prompt=80), at=n * 7)
        for n in range(50)
    ]
    made, log = ran(submissions, instances={n: profile(seqs=6, kv=1500) for n in ("i", "j")})

    rows = made.metrics.rows
    assert {whose for _, _, whose in told(log, WorkflowEnded)} == {f"w{n}" for n in range(50)}
    assert len(rows) == 100
    totals = [engine.stats for engine in made.fleet.engines]
    assert sum(row.preemptions for row in rows) == sum(each.preemptions for each in totals) > 0
    assert sum(row.recomputed_tokens for row in rows) == sum(t.recomputed_tokens for t in totals)
    assert sum(row.cached_tokens for row in rows) == sum(t.cached_tokens for t in totals)
    generated = sum(row.completion_tokens for row in rows)
    prompts = sum(row.prompt_tokens - row.cached_tokens for row in rows)
    recomputed = sum(t.recomputed_tokens for t in totals)
    computed = sum(t.prefill_tokens + t.decode_tokens for t in totals)
    # An answer's first token comes with the prompt; what was preempted may be found in the cache.
    assert computed == generated - len(rows) + prompts + recomputed


def test_alone_a_workflow_takes_its_calls_and_gaps_and_finds_nothing_cached():
    group = {"parallel_group": "g"}
    same = call(3, prompt=30, shared_prefix_tokens=20)
    by_token = profile(seqs=4, step=StepCost(fixed_us=1, prefill_token_us=100))
    submissions = [
        submission("chain", call(3), call(2, gap_ms=5)),
        submission("fan", call(2), call(3, **group), call(9, **group, gap_ms=1), call(1)),
        submission("first", same),
        submission("second", same),
    ]

    workflows = [each.workflow for each in submissions]
    assert alone_us(workflows, profile(seqs=4)) == {
        "chain": 10 * MS,
        "fan": 13 * MS,
        "first": 3 * MS,
        "second": 3 * MS,
    }
    of_tokens = alone_us(workflows[2:], by_token)
    assert of_tokens["first"] == of_tokens["second"]
