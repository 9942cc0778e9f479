"""The ordering experiment measures what it says, on workflows small enough to know the answer."""

import math
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.report import Figure
from experiments import recordings, report, trial
from experiments.e16_ordering import Result, figures, modelled, section
from experiments.pairs import accuracy, places
from experiments.playing import (
    DECODE_US_PER_TOKEN,
    PREFILL_US_PER_TOKEN,
    facts,
    play,
    request_id,
    service_us,
)
from experiments.recordings import RecordedCall, halves, read_apps
from experiments.references import all_features, by_agent_and_step, see
from experiments.trial import (
    ORACLE,
    TABLE,
    Row,
    choose,
    judge,
    measure,
    policy_orders,
    prepared,
)
from kairos.errors import InvalidFile, SetupError
from kairos.events import Arrived, Finished, WorkflowEnded
from kairos.scheduler.policies import POLICIES


def call(index, agent="a", *, workflow="w", app="app", prompt=10, completion=10, **fields):
    return RecordedCall(
        workflow_id=workflow,
        app=app,
        agent=agent,
        upstream=fields.pop("upstream", None),
        call_index=index,
        prompt_tokens=prompt,
        completion_tokens=completion,
        **fields,
    )


def chains(app, workflows, stages=("first", "second", "third")):
    """Workflows of one call per agent, all of different lengths."""
    return [
        tuple(
            call(n, agent, workflow=f"{app}-{w}", app=app, prompt=20 + w, completion=5 + w + 40 * n)
            for n, agent in enumerate(stages)
        )
        for w in range(workflows)
    ]


# accuracy of pairs


def by_the_book(order, truth, workflow, agent):
    """Section 7.4, pair by pair."""
    shares = []
    for i in range(len(order)):
        right = []
        for j in range(len(order)):
            if workflow[i] == workflow[j] or truth[i] == truth[j]:
                continue
            if agent is not None and agent[i] == agent[j]:
                continue
            if order[i] == order[j]:
                right.append(0.5)
            else:
                right.append(float((order[i] < order[j]) == (truth[i] < truth[j])))
        if right:
            shares.append(sum(right) / len(right))
    return sum(shares) / len(shares) if shares else None


requests = st.lists(st.tuples(*[st.integers(0, 4)] * 4), max_size=12)


@given(requests, st.booleans())
def test_accuracy_is_that_of_the_definition_read_pair_by_pair(rows, only_different_agents):
    columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)] or [
        np.zeros(0, dtype=np.int64)
    ] * 4
    order, truth, workflow, agent = columns
    agents = agent if only_different_agents else None

    found, expected = accuracy(order, truth, workflow, agents), by_the_book(*columns[:3], agents)

    assert found == (None if expected is None else pytest.approx(expected))


def test_accuracy_does_not_depend_on_how_many_rows_are_compared_at_a_time(monkeypatch):
    random = np.random.default_rng(1)
    columns = [random.integers(0, 9, 50) for _ in range(4)]
    whole = accuracy(*columns)
    monkeypatch.setattr("experiments.pairs._ROWS", 7)
    assert accuracy(*columns) == whole


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3))))
def test_places_keep_the_order_of_keys_and_their_ties(keys):
    found = places(keys).tolist()
    for a, key_a in zip(found, keys, strict=True):
        for b, key_b in zip(found, keys, strict=True):
            assert (a < b, a == b) == (key_a < key_b, key_a == key_b)


# service times and the truth


def test_what_the_cache_holds_is_not_prefilled_again():
    fresh = call(0, prompt=100, completion=7)
    cached = call(0, prompt=100, completion=7, cached_prefix_tokens=60)
    assert service_us(fresh) == 100 * PREFILL_US_PER_TOKEN + 7 * DECODE_US_PER_TOKEN
    assert service_us(fresh) - service_us(cached) == 60 * PREFILL_US_PER_TOKEN


def test_in_a_chain_what_remains_is_the_sum_of_the_calls_that_are_left_without_gaps():
    chain = (call(0), call(1, completion=20, gap_ms=60_000), call(4, completion=30))
    own = [service_us(each) for each in chain]
    played = play(chain)
    assert played.remaining_us == [sum(own), own[1] + own[2], own[2]]
    assert played.started_at == [0, own[0], own[0] + own[1]]
    assert played.ended_at == [own[0], own[0] + own[1], sum(own)]


def beside_a_sub_agent(sub_end_ms, sub_completion=50):
    """main 0 calls a sub-agent (1, 2) and goes on with main 3 and 4, begun at 100 and 200 ms."""
    sub = {"completion": sub_completion, "parallel_group": "s"}
    return (
        call(0, "main", completion=1, start_ms=0, end_ms=10),
        call(1, "sub", start_ms=20, end_ms=30, **sub),
        call(2, "sub", start_ms=40, end_ms=sub_end_ms, **sub),
        call(3, "main", completion=2, start_ms=100, end_ms=110),
        call(4, "main", completion=3, start_ms=200, end_ms=210),
    )


def test_the_first_call_that_began_after_a_sub_agent_ended_waits_for_it():
    workflow = beside_a_sub_agent(sub_end_ms=150)
    main0, sub1, sub2, main3, main4 = [service_us(each) for each in workflow]
    played = play(workflow)
    assert played.remaining_us == [
        main0 + sub1 + sub2 + main4,
        sub1 + sub2 + main4,
        sub2 + main4,
        main3 + main4,
        main4,
    ]
    assert played.started_at[3] == played.started_at[1] == main0  # side by side
    assert played.started_at[4] == main0 + sub1 + sub2


def test_a_short_sub_agent_is_no_part_of_the_longest_path():
    workflow = beside_a_sub_agent(sub_end_ms=150, sub_completion=1)
    short = msgspec.structs.replace(workflow[3], completion_tokens=500)
    workflow = (*workflow[:3], short, workflow[4])
    main0, _, sub2, main3, main4 = [service_us(each) for each in workflow]
    remaining = play(workflow).remaining_us
    assert remaining[0] == main0 + main3 + main4
    assert remaining[2] == sub2 + main4


def test_a_sub_agent_that_outlives_the_main_chain_delays_only_the_end():
    workflow = beside_a_sub_agent(sub_end_ms=999)
    main0, sub1, sub2, main3, main4 = [service_us(each) for each in workflow]
    remaining = play(workflow).remaining_us
    assert remaining == [main0 + sub1 + sub2, sub1 + sub2, sub2, main3 + main4, main4]


def test_calls_beside_a_sub_agent_need_their_times():
    workflow = (call(0, "main"), call(1, "sub", parallel_group="s"), call(2, "main"))
    with pytest.raises(SetupError, match="need their times"):
        play(workflow)


def test_facts_are_told_in_the_order_in_which_they_happen():
    workflow = beside_a_sub_agent(sub_end_ms=150)
    told = facts(play(workflow), start_at=1_000)
    instants = [at for at, _ in told]
    assert instants == sorted(instants)
    assert instants[0] == 1_000
    assert isinstance(told[-1][1], WorkflowEnded)
    in_flight = set()
    for _, event in told:
        match event:
            case Arrived(request):
                # The two chains run side by side; within one, a call comes when the last has ended.
                assert request.agent not in in_flight
                in_flight.add(request.agent)
            case Finished(request_id=ended):
                in_flight.remove(next(c.agent for c in workflow if request_id(c) == ended))
    assert not in_flight


def test_a_request_tells_nothing_of_how_long_its_answer_will_be():
    lengths = [
        event.request.completion_tokens
        for completion in (1, 900)
        for _, event in facts(play((call(0, completion=completion),)), start_at=0)
        if isinstance(event, Arrived)
    ]
    assert len(set(lengths)) == 1


# recordings


def test_workflows_are_read_by_application_in_the_order_of_the_file(tmp_path):
    calls = [call(0), call(0, app="other"), call(2, gap_kind="tool", turn=3)]
    path = tmp_path / "w.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in calls))
    assert read_apps(path) == {"app": [(calls[0], calls[2])], "other": [(calls[1],)]}


def test_a_line_that_is_no_call_is_named(tmp_path):
    path = tmp_path / "w.jsonl"
    path.write_bytes(msgspec.json.encode(call(0)) + b'\n{"workflow_id": 3}\n')
    with pytest.raises(InvalidFile, match=":2: not a call"):
        read_apps(path)


def test_missing_data_is_named_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("KAIROS_DATA", str(tmp_path))
    with pytest.raises(SetupError, match="KAIROS_DATA"):
        recordings.recordings()


def test_halves_share_no_workflow_and_leave_none_out():
    workflows = chains("app", 7)
    learnt, tested = halves(workflows, seed=1)
    assert len(learnt + tested) == len(workflows)
    assert set(learnt + tested) == set(workflows)
    assert len(learnt) == 3
    assert halves(workflows, seed=2) != (learnt, tested)


# references


def test_the_table_falls_back_from_the_step_to_the_agent_and_to_the_app():
    workflow = (call(0, "a"), call(1, "b", completion=400), call(2, "a"))
    learnt = see(play(workflow))
    first, _, third = [seen.remaining_us for seen in learnt]
    asked = see(play((call(0, "a"), call(1, "a"), call(2, "new"))))
    assert by_agent_and_step(learnt, asked) == [
        first,
        (first + third) / 2,
        pytest.approx(sum(seen.remaining_us for seen in learnt) / 3),
    ]


def test_what_was_seen_is_what_had_ended_when_the_call_arrived():
    workflow = (
        call(0, "a", completion=11, gap_ms=5),
        call(1, "b", completion=22, gap_ms=7, prompt=30),
        call(2, "a", completion=33),
    )
    first, second, third = see(play(workflow))
    assert (first.before, first.ended, first.completed_tokens, first.gaps_ms) == (None, 0, 0, 5)
    assert (second.before, second.ended, second.completed_tokens) == (workflow[0], 1, 11)
    assert (third.ended, third.completed_tokens, third.gaps_ms, third.agents) == (2, 33, 12, 2)
    assert (third.position.stage, third.position.visit) == (2, 2)
    assert third.position.served_us == sum(map(service_us, workflow[:2]))


def known(seen):
    """All but the truth, and the length of the call's own answer."""
    return [
        msgspec.structs.replace(
            each, remaining_us=0, call=msgspec.structs.replace(each.call, completion_tokens=1)
        )
        for each in seen
    ]


def test_nothing_of_a_call_or_of_what_follows_is_seen_when_it_arrives():
    one = (call(0), call(1, completion=10), call(2, completion=10))
    other = (call(0), call(1, completion=999), call(2, completion=10))
    assert known(see(play(one))[:2]) == known(see(play(other))[:2])
    assert known(see(play(one))[2:]) != known(see(play(other))[2:])


@pytest.mark.long
def test_boosted_trees_find_what_only_a_recording_tells():
    """The kind of the gap decides how long the call will be, and no policy is told of it."""
    workflows = [
        (call(0, workflow=f"w{n}", gap_kind=kind, completion=tokens),)
        for n in range(30)
        for kind, tokens in (("tool", 10), ("user", 500))
    ]
    learnt = [seen for workflow in workflows for seen in see(play(workflow))]
    short, long = all_features(learnt, learnt[:2], seed=0)
    assert short < math.log(learnt[0].remaining_us) + 0.5 < long


# the whole


@pytest.fixture(scope="module")
def rows():
    apps = {"one": chains("one", 24), "two": chains("two", 16, ("second", "first"))}
    return apps, list(measure(apps, range(2), calls_per_app=30))


def of(rows, scenario, order, field="different_agents"):
    return [getattr(row, field) for row in rows if (row.scenario, row.order) == (scenario, order)]


@pytest.mark.long
def test_every_policy_and_reference_is_judged_in_every_scenario(rows):
    _, found = rows
    assert {row.scenario for row in found} == {"one", "two", "mix"}
    assert {row.order for row in found} >= {*POLICIES, ORACLE, TABLE}
    calls = {row.scenario: row.calls for row in found}
    assert calls["one"] == 30  # of 36
    assert calls["two"] == 16
    assert calls["mix"] == 2 * 16  # as many of each as of the smaller one


def test_rows_are_the_accuracy_of_the_keys_with_and_without_pairs_of_one_agent():
    seen = [each for workflow in chains("app", 5) for each in see(play(workflow))]
    keys = [(float(n * 7 % 11),) for n in range(len(seen))]
    (row,) = judge("app", 3, {"order": keys}, seen)
    columns = (
        [key for (key,) in keys],
        [each.remaining_us for each in seen],
        [each.call.workflow_id for each in seen],
    )
    agents = [each.call.agent for each in seen]
    assert row.different_agents == pytest.approx(by_the_book(*columns, agents))
    assert row.all_pairs == pytest.approx(by_the_book(*columns, None))
    assert row.different_agents != pytest.approx(row.all_pairs)


def test_pending_calls_are_drawn_from_all_that_are_tested():
    tested = {"app": [prepared(workflow) for workflow in chains("app", 40)]}
    ids = [request_id(each.call) for workflow in tested["app"] for each in workflow.seen]
    drawn = choose(tested, 30, Random(1))
    assert len(drawn) == 30
    assert drawn < set(ids)
    assert drawn & set(ids[:40])
    assert drawn & set(ids[-40:])


def test_no_workflow_is_both_learnt_and_tested(monkeypatch):
    told = []

    def spy(learnt, tested, seen, random):
        told.append([{p.workflow[0].workflow_id for p in half} for half in (learnt, tested)])
        return policy_orders(learnt, tested, seen, random)

    monkeypatch.setattr(trial, "policy_orders", spy)
    list(measure({"one": chains("one", 8), "two": chains("two", 6)}, [0], calls_per_app=9))
    assert [(len(learnt), len(tested)) for learnt, tested in told] == [(4, 4), (3, 3), (7, 7)]
    assert not any(learnt & tested for learnt, tested in told)


@pytest.mark.parametrize("policy", ["fcfs", "fcfs-app"])
def test_that_longer_workflows_were_played_later_tells_an_order_nothing(policy):
    """Workflows of one call each, in the order of their lengths."""
    workflows = [(call(0, str(n), workflow=f"w{n}", completion=5 + n),) for n in range(400)]
    tested = [prepared(workflow) for workflow in workflows]
    seen = [each for workflow in tested for each in workflow.seen]
    orders = policy_orders([], [each.played for each in tested], seen, Random(1))
    (row,) = judge("app", 1, {policy: orders[policy]}, seen)
    assert row.different_agents == pytest.approx(0.5, abs=0.06)


def test_the_oracle_is_always_right(rows):
    _, found = rows
    for scenario in ("one", "two", "mix"):
        assert of(found, scenario, ORACLE) == [1.0] * 2
        assert of(found, scenario, ORACLE, "all_pairs") == [1.0] * 2


@pytest.mark.long
def test_first_come_first_served_is_right_half_of_the_time():
    apps = {"one": chains("one", 200)}
    found = list(measure(apps, range(2), calls_per_app=300))
    assert np.mean(of(found, "one", "fcfs")) == pytest.approx(0.5, abs=0.03)
    assert np.mean(of(found, "one", "fcfs", "all_pairs")) == pytest.approx(0.5, abs=0.03)


def test_policies_order_by_what_they_learnt_of_other_workflows(rows):
    """A chain's later agents have less left to do: who learns this is right most of the time."""
    _, found = rows
    for policy in ("ayo", "wasserstein-mds", "mean", "gittins", "kairos"):
        assert min(of(found, "one", policy)) > 0.65, policy
    # The least attained service goes first: in a chain, just the wrong one.
    assert max(of(found, "one", "las")) < 0.5


@pytest.mark.long
def test_the_same_seed_gives_the_same_bytes(rows):
    apps, found = rows
    again = list(measure(apps, range(2), calls_per_app=30))
    assert msgspec.json.encode(again) == msgspec.json.encode(found)
    other = list(measure(apps, [7], calls_per_app=30))
    assert of(other, "one", "fcfs") != of(found, "one", "fcfs")[:1]


# the report


def test_figures_compare_the_means_and_name_the_worst_application():
    accuracies = {
        ("a", "kairos"): (0.8, 0.9),
        ("a", "wasserstein-mds"): (0.7, 0.7),
        ("b", "kairos"): (0.5, 0.5),
        ("b", "wasserstein-mds"): (0.6, 0.5),
        ("mix", "kairos"): (0.9, 0.8),
        ("mix", "wasserstein-mds"): (0.8, 0.8),
    }
    given_rows = [
        Row(scenario=s, order=o, seed=seed, calls=1, different_agents=value, all_pairs=value)
        for (s, o), values in (
            *accuracies.items(),
            *(((s, "all features"), (1.0, 1.0)) for s in ("a", "b", "mix")),
        )
        for seed, value in enumerate(values)
    ]
    results = [Result("abc", "recorded", row) for row in given_rows]
    gain, ours, worst = figures(results)
    assert (gain.value, gain.target, gain.met) == (0.05, 0.03, True)
    assert (ours.value, ours.reference) == (0.85, 0.835)
    assert (worst.value, worst.met, worst.detail["application"]) == (-0.05, False, "b")
    assert "| kairos | 0.850 ± 0.050 | 0.500 ± 0.000 | 0.850 ± 0.050 | 0.835 |" in section(results)


def test_models_are_judged_as_recordings_are():
    apps = modelled(6)

    ids = [each[0].workflow_id for workflows in apps.values() for each in workflows]
    assert len(set(ids)) == 6 * len(apps)
    found = {row.order: row for row in measure({"cg": apps["cg"]}, [1], calls_per_app=30)}
    assert found[ORACLE].different_agents == 1.0


def test_a_figure_replaces_that_of_its_name_and_leaves_the_others(tmp_path):
    path = tmp_path / "report.json"
    other = Figure(name="other", value=1.0, unit="s", target=2.0)
    report.add_figures([other, Figure(name="mine", value=0.1, unit="", target=None)], path)
    mine = Figure(name="mine", value=0.2, unit="", target=0.2, better="higher")
    report.add_figures([mine], path)
    assert msgspec.json.decode(path.read_bytes(), type=list[Figure]) == [other, mine]
    assert (other.met, mine.met) == (True, True)
