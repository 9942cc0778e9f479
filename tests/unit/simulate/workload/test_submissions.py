"""Workflows as they are asked for: their order, their ids, and contexts that fit a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SetupError
from kairos.simulate import Workflow, draw_submissions
from kairos.simulate.workload.submissions import in_order, scaled
from kairos.simulate.workload.workflows import Submission, workflow
from tests.support.simulate.worlds import recorded_call


def one(workflow_id: str, *lengths: tuple[int, int], app: str = "a", **more) -> Workflow:
    return workflow(
        [
            recorded_call(workflow_id, index, prompt=prompt, answer=answer, app=app, **more)
            for index, (prompt, answer) in enumerate(lengths or [(8, 2)])
        ]
    )


def ids(planned: list[Submission]) -> list[str]:
    return [each.workflow.id for each in planned]


def test_a_few_are_a_sample_that_the_seed_chooses():
    workflows = [one(f"w{n}") for n in range(50)]

    chosen = {tuple(ids(draw_submissions(workflows, [0, 5, 9], seed))) for seed in range(20)}

    assert len(chosen) == 20
    assert [each.at_us for each in draw_submissions(workflows, [0, 5, 9], 1)] == [0, 5, 9]
    assert draw_submissions(workflows, [0, 5], 3) == draw_submissions(workflows, [0, 5, 9], 3)[:2]


def test_workflows_that_run_out_come_again_in_the_same_order_under_other_ids():
    workflows = [one("w"), one("v"), one("w~2")]

    planned = draw_submissions(workflows, range(8), seed=4)

    names = ids(planned)
    assert len({*names}) == 8
    first, *_ = names[:3]
    assert sorted(names[:3]) == ["v", "w", "w~2"]
    assert [each.split("~")[0] for each in names[3:6]] == [each.split("~")[0] for each in names[:3]]
    assert {"w~3", "v~2", "w~2~2"} <= {*names}
    again = planned[3].workflow
    assert again.calls[0].workflow_id == again.id != first
    assert again.prompts[0][0].name.startswith(f"{again.id}#")  # not found in a cache


def test_submissions_of_several_files_are_put_in_order_and_kept_apart():
    mixed = in_order(
        Submission(at_us=at, workflow=one(name)) for at, name in [(7, "w"), (3, "w"), (5, "v")]
    )

    assert [(each.at_us, each.workflow.id) for each in mixed] == [(3, "w"), (5, "v"), (7, "w~2")]


def test_ids_that_come_again_differ_and_are_no_longer_than_ids_may_be():
    long = "x" * 240
    names = ids(draw_submissions([one(long + "a" * 16), one(long + "b" * 16)], range(6), seed=1))

    assert len({*names}) == 6
    assert max(map(len, names)) <= 256


# Contexts that fit


def test_an_app_that_fits_stays_as_it_is():
    workflows = [one("w", (90, 10))]

    assert scaled(workflows, 100)[0] is workflows[0]


def test_all_prompts_of_an_app_are_shortened_by_one_factor_and_completions_stay():
    workflows = [one("w", (800, 10), (400, 20)), one("v", (80, 30)), one("o", (9, 9), app="b")]

    shorter = scaled(workflows, 110)

    lengths = [[(c.prompt_tokens, c.completion_tokens) for c in each.calls] for each in shorter]
    assert lengths == [[(100, 10), (50, 20)], [(10, 30)], [(9, 9)]]


def test_what_is_cached_and_shared_of_a_prompt_shrinks_with_it():
    (shorter,) = scaled(
        [one("w", (200, 1), (399, 1), cached_prefix_tokens=100, shared_prefix_tokens=40)], 134
    )

    second = shorter.calls[1]
    assert (second.prompt_tokens, second.cached_prefix_tokens, second.shared_prefix_tokens) == (
        133,
        33,
        13,
    )
    assert shorter.prompts[1][0].tokens == 13


def test_what_is_shortened_is_rounded_down():
    (shorter,) = scaled([one("w", (30, 10), (19, 13))], 20)

    assert [(c.prompt_tokens, c.completion_tokens) for c in shorter.calls] == [(13, 7), (8, 10)]


def test_completions_of_more_than_half_the_context_are_shortened_too():
    (shorter,) = scaled([one("w", (100, 400), (100, 200))], 200)

    assert [call.completion_tokens for call in shorter.calls] == [100, 50]
    assert [call.prompt_tokens for call in shorter.calls] == [100, 100]


def test_a_context_for_nothing_is_refused():
    with pytest.raises(SetupError, match="2 tokens or more; it is 1"):
        scaled([one("w")], 1)


lengths = st.tuples(st.integers(1, 10**7), st.integers(1, 10**5))


@given(st.lists(lengths, min_size=1, max_size=8), st.integers(2, 10_000))
def test_whatever_the_lengths_they_fit_and_stay_in_order(calls, max_tokens):
    (shorter,) = scaled([one("w", *calls)], max_tokens)

    for call in shorter.calls:
        assert call.prompt_tokens >= 1
        assert call.completion_tokens >= 1
        assert call.prompt_tokens + call.completion_tokens <= max_tokens
    pairs = [(prompt, call.prompt_tokens) for (prompt, _), call in zip(calls, shorter.calls)]  # noqa: B905
    assert [after for _, after in sorted(pairs)] == sorted(after for _, after in pairs)
