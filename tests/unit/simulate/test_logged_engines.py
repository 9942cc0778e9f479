"""Engines as a log saw them, to the model of them."""

import pytest

from kairos.core import CallRow, Dispatch, SetupError
from kairos.simulate.logged_engines import FEWEST, logged_engines
from tests.support.simulate import build


def row(n, *, gone, first, ended, prompt=100, answer=11, instance="a"):
    request = build.request(f"r{n}", at=gone)
    return CallRow(
        request,
        dispatch=Dispatch(request.id, instance),
        dispatched_at=gone,
        first_token_at=first,
        ended_at=ended,
        outcome="finished",
        prompt_tokens=prompt,
        completion_tokens=answer,
    )


def fitted(rows):
    instances = {"a": build.instance("a", seqs=4, kv=None)}
    return logged_engines(instances, rows, 1_000)


def test_calls_that_are_all_alike_give_steps_that_take_what_they_took():
    rows = [
        row(n, gone=n * 10**6, first=None, ended=n * 10**6 + 110_000) for n in range(FEWEST + 8)
    ]
    found = fitted(rows)
    step = found.profiles["a"].step
    assert step.fixed_us + max(step.weights_us, min(step.prefill_token_us, step.decode_seq_us)) >= 1
    assert found.off < 0.05


def test_prompts_and_answers_are_told_apart_where_answers_are_streamed():
    rows = []
    for n in range(40):
        prompt, answer, gone = 100 + 90 * (n % 7), 10 + 9 * (n % 5), n * 10**7
        first = gone + 5_000 + 20 * prompt
        rows.append(
            row(n, gone=gone, first=first, ended=first + 5_000 * (answer - 1), prompt=prompt)
        )
        rows[-1].completion_tokens = answer
    step = fitted(rows).profiles["a"].step
    assert step.prefill_token_us == pytest.approx(20, rel=0.1)
    assert step.fixed_us + step.weights_us + step.decode_seq_us == pytest.approx(5_000, rel=0.1)


def test_memory_that_is_not_known_is_never_short():
    rows = [row(n, gone=n * 10**6, first=None, ended=n * 10**6 + 110_000) for n in range(40)]
    assert fitted(rows).profiles["a"].kv_tokens >= 4 * 1_000


def test_too_few_calls_are_refused():
    with pytest.raises(SetupError, match="it takes 12"):
        fitted([row(1, gone=0, first=None, ended=110_000)])
