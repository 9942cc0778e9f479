"""Workflows as they are asked for: their order, their ids, and contexts that fit a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.errors import SetupError
from kairos.workload import FileCall
from kairos.workload.submissions import scaled
from kairos.workload.workflows import Workflow, workflow


def one(workflow_id: str, *lengths: tuple[int, int], app: str = "a", **more) -> Workflow:
    return workflow(
        [
            FileCall(
                workflow_id=workflow_id,
                app=app,
                agent="writer",
                upstream="user",
                call_index=index,
                prompt_tokens=prompt,
                completion_tokens=completion,
                **more,
            )
            for index, (prompt, completion) in enumerate(lengths or [(8, 2)])
        ]
    )


# Contexts that fit


def test_all_prompts_of_an_app_are_shortened_by_one_factor_and_completions_stay():
    workflows = [one("w", (800, 10), (400, 20)), one("v", (80, 30)), one("o", (9, 9), app="b")]

    shorter = scaled(workflows, 110)

    lengths = [[(c.prompt_tokens, c.completion_tokens) for c in each.calls] for each in shorter]
    assert lengths == [[(100, 10), (50, 20)], [(10, 30)], [(9, 9)]]


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
