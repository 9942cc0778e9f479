"""Whole workflows from a file: what is refused, and which calls wait for which."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import InvalidFile
from kairos.simulate import FileCall, load_workflows
from kairos.simulate.workload import workflows
from kairos.simulate.workload.workflows import must_have_ended, waits_for

CALL = {
    "workflow_id": "w",
    "app": "a",
    "agent": "writer",
    "upstream": "user",
    "call_index": 0,
    "prompt_tokens": 9,
    "completion_tokens": 3,
}


def write(path: Path, *rows: dict[str, object]) -> Path:
    path.write_bytes(b"".join(json.dumps(CALL | row).encode() + b"\n" for row in rows))
    return path


def in_groups(*groups: str | None, times: list[tuple[int, int]] | None = None) -> list[FileCall]:
    """Calls one after the other, by their groups, and the times at which they ran."""
    calls = [
        FileCall(**CALL | {"call_index": n, "parallel_group": g}) for n, g in enumerate(groups)
    ]
    if times is None:
        return calls
    return [
        FileCall(**CALL | {"call_index": n, "parallel_group": g, "start_ms": start, "end_ms": end})
        for n, (g, (start, end)) in enumerate(zip(groups, times, strict=True))
    ]


# What is refused


@pytest.mark.parametrize(
    ("rows", "line", "problem"),
    [
        ([{}, {"call_index": 1, "prompt_tokens": -3}], 2, "prompt_tokens"),
        ([{}, {"call_index": 1, "completion_tokens": 0}], 2, "completion_tokens"),
        ([{}, {}], 2, "call_index 0 after 0 in workflow 'w': it must ascend"),
        ([{"call_index": 5}, {"call_index": 4}], 2, "call_index 4 after 5"),
        ([{}, {"call_index": 1, "app": "b"}], 2, "workflow 'w' is of two apps: 'a' and 'b'"),
        ([{"cached_prefix_tokens": 10}], 1, r"cached_prefix_tokens is above prompt_tokens \(9\)"),
        ([{"shared_prefix_tokens": 10}], 1, r"shared_prefix_tokens is above prompt_tokens \(9\)"),
        ([{"start_ms": 7, "end_ms": 6}], 1, r"end_ms is before start_ms \(7\)"),
        (
            [{"workflow_start_ms": 7}, {"call_index": 1}],
            2,
            "workflow 'w' has two workflow_start_ms: 7 and None",
        ),
        ([{"upstream": "nobody"}], 1, "the upstream 'nobody' .* makes no call in workflow 'w'"),
        ([{}, {"call_index": 1, "upstream": "nobody"}], 2, "'nobody' .* makes no call"),
        (
            [
                {},
                {"call_index": 1, "upstream": "checker"},
                {"call_index": 2},
                {"call_index": 3, "agent": "checker"},
                {"call_index": 4, "agent": "checker"},
            ],
            2,
            "'checker' of the call by 'writer' makes its first call only later, in line 4",
        ),
    ],
)
def test_a_broken_workflow_is_refused_with_its_line(tmp_path, rows, line, problem):
    path = write(tmp_path / "w.jsonl", *rows)

    with pytest.raises(InvalidFile, match=rf"w\.jsonl:{line}: .*{problem}"):
        load_workflows(path)


def test_gzip_that_breaks_off_is_refused(tmp_path):
    path = tmp_path / "w.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(CALL).encode())[:-9])

    with pytest.raises(InvalidFile, match=r"w\.jsonl\.gz: cannot be read"):
        load_workflows(path)


def test_a_file_without_a_call_is_refused(tmp_path):
    (tmp_path / "w.jsonl").write_bytes(b"\n\n")

    with pytest.raises(InvalidFile, match="there is no call in the file"):
        load_workflows(tmp_path / "w.jsonl")


def test_a_file_and_a_workflow_of_too_many_calls_are_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "w.jsonl", {}, {"call_index": 1}, {"call_index": 2})
    monkeypatch.setattr(workflows, "MAX_WORKFLOW_CALLS", 2)
    with pytest.raises(InvalidFile, match="3: more than 2 calls in workflow 'w'"):
        load_workflows(path)
    monkeypatch.setattr(workflows, "MAX_CALLS", 1)
    with pytest.raises(InvalidFile, match="2: more than 1 calls; split the file"):
        load_workflows(path)


# What is taken


def test_a_conversation_may_open_with_words_put_into_the_mouth_of_any_agent(tmp_path):
    opening = {"workflow_id": "v", "upstream": "Expert"}  # who calls no model anywhere
    path = write(tmp_path / "w.jsonl", {"upstream": "critic"}, {"agent": "critic", "call_index": 1})
    conversation = path.read_bytes()
    write(path, opening)

    with pytest.raises(InvalidFile, match=r":1: the upstream 'Expert' of the call by 'writer'"):
        load_workflows(path)
    path.write_bytes(path.read_bytes() + conversation)
    assert len(load_workflows(path)) == 2
    # Of another app, that says nothing; and it holds for the first call alone.
    path.write_bytes(conversation)
    path.write_bytes(conversation + json.dumps(CALL | opening | {"app": "b"}).encode())
    with pytest.raises(InvalidFile, match=r":3: the upstream 'Expert'"):
        load_workflows(path)
    path.write_bytes(
        conversation + json.dumps(CALL | {"call_index": 2, "upstream": "Expert"}).encode()
    )
    with pytest.raises(InvalidFile, match=r":3: the upstream 'Expert'"):
        load_workflows(path)


def test_real_agents_workflows_are_loaded_whole(data):
    loaded = load_workflows(data / "agentic_workflows.jsonl.gz")

    assert len(loaded) == 1_060
    assert sum(len(each.calls) for each in loaded) == 50_977


# Who waits for whom


def test_a_group_after_another_waits_for_all_of_it():
    assert waits_for(in_groups("b", "b", "c", "c")) == ((), (), (0, 1), (0, 1))


def test_with_times_a_sub_agent_is_a_chain_beside_the_main_one():
    # main 0..10; sub-agent s at 11..20 and 21..40 while main is busy at 12..30; main again at 41.
    calls = in_groups(
        None, "s", "s", None, None, times=[(0, 10), (11, 20), (21, 40), (12, 30), (41, 50)]
    )

    assert waits_for(calls) == ((), (0,), (1,), (0,), (2, 3))


def test_with_times_branches_of_two_groups_do_not_wait_for_each_other():
    # Levels as `kairos export` writes them: the second call of the short branch begins before the
    # first of the long one has ended.
    calls = in_groups(
        "level-0", "level-0", "level-1", "level-1", times=[(0, 5), (0, 20), (5, 9), (20, 30)]
    )

    assert waits_for(calls) == ((), (), (0,), (1, 2))


def test_a_call_that_was_made_as_the_last_one_ended_waits_for_it():
    touching = [(0, 10), (8, 20), (8, 20)]

    assert waits_for(in_groups(None, "b", "b", times=touching)) == ((), (0,), (0,))
    assert waits_for(in_groups("b", "b", "b", times=touching)) == ((), (), ())
    assert waits_for(in_groups(None, "b", times=[(0, 11), (8, 20)])) == ((), ())


def test_a_call_waits_for_no_other_through_one_that_waits_for_it_too():
    side_by_side = in_groups(None, "b", "b", None, times=[(0, 1), (2, 9), (2, 3), (5, 8)])

    assert waits_for(side_by_side) == ((), (0,), (0,), (2,))


@pytest.mark.parametrize("end", [5, 7, 8])
def test_of_a_group_only_the_calls_that_began_after_an_end_wait_for_it(end):
    calls = in_groups("a", "b", "b", times=[(0, end), (end - 3, 20), (end - 2, 20)])
    assert waits_for(calls) == ((), (), (0,))
    calls = in_groups("b", "b", "b", times=[(0, end), (end - 1, 20), (end, 20)])
    assert waits_for(calls) == ((), (), (0,))


@st.composite
def recorded(draw):
    groups = draw(st.lists(st.sampled_from([None, None, "b", "c"]), max_size=14))
    times = [draw(st.tuples(st.integers(0, 9), st.integers(0, 9))) for _ in groups]
    calls = in_groups(*groups, times=[(start, start + took) for start, took in times])
    timeless = draw(st.lists(st.booleans(), min_size=len(calls), max_size=len(calls)))
    untimed = in_groups(*groups)
    return [
        without if drop else with_times
        for drop, without, with_times in zip(timeless, untimed, calls, strict=True)
    ]


@given(recorded())
def test_the_direct_ones_reach_all_that_the_rule_names_and_none_is_reached_twice(calls):
    waits = waits_for(calls)

    reached: list[set[int]] = []
    named: list[set[int]] = []  # by the rule, and what those wait for
    for index, direct in enumerate(waits):
        assert list(direct) == sorted(set(direct))
        reached.append(set(direct).union(*(reached[each] for each in direct)))
        pairs = {each for each in range(index) if must_have_ended(calls[each], calls[index])}
        named.append(pairs.union(*(named[each] for each in pairs)))
        for each in direct:
            assert not any(each in reached[other] for other in direct)
    assert reached == named
