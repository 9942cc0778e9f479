"""Helium's token steps, by hand."""

import pytest

from experiments.token_steps import ends, new_tokens, token_steps, usage
from kairos.workflows.compile.call_shapes import PromptSegment, ScheduledCall

SYSTEM, A, B = PromptSegment("system", 10), PromptSegment("a", 5), PromptSegment("b", 7)
CALLS = {
    "one": ScheduledCall((SYSTEM, A), 4),
    "other": ScheduledCall((SYSTEM, B), 2),
    "judge": ScheduledCall((SYSTEM, A, PromptSegment("c", 1)), 3, after=("one",)),
}


def test_e6_only_what_the_call_before_has_from_the_root_on_is_shared():
    assert new_tokens(None, CALLS["one"]) == 15
    assert new_tokens(CALLS["one"], CALLS["other"]) == 7
    assert new_tokens(CALLS["one"], CALLS["judge"]) == 1
    assert new_tokens(CALLS["one"], ScheduledCall((A, SYSTEM), 1)) == 15


def test_e6_a_call_uses_its_new_tokens_at_each_step_and_its_answer_as_it_grows():
    assert usage(None, CALLS["one"], 10) == (4 * 15 + (1 + 2 + 3 + 4)) / 10
    assert usage(CALLS["one"], CALLS["other"], 10) == (2 * 7 + (1 + 2)) / 10


def test_e6_hand_example_a_call_waits_out_the_delay_of_what_it_needs():
    # one: 0 to 7; other: 7 to 8.7; judge may begin at 7 + 4 = 11, and takes (3 * 6 + 6) / 10.
    found = ends([["one", "other", "judge"]], CALLS, [10])
    assert found == pytest.approx({"one": 7.0, "other": 8.7, "judge": 13.4})
    # Without one between, it waits as long, but shares more: (3 * 1 + 6) / 10.
    found = ends([["one", "judge", "other"]], CALLS, [10])
    assert found == pytest.approx({"one": 7.0, "judge": 11.9, "other": 13.6})


def test_e6_hand_example_work_between_hides_the_delay():
    # other as long as the delay: judge begins when it ends, since 7 + (2 * 37 + 3) / 10 > 11.
    calls = CALLS | {"other": ScheduledCall((PromptSegment("long", 37),), 2)}
    found = ends([["one", "other", "judge"]], calls, [10])
    assert found == pytest.approx({"one": 7.0, "other": 14.7, "judge": 14.7 + (3 * 16 + 6) / 10})


@pytest.mark.parametrize("turn", [1, -1], ids=["the waiting one first", "the waiting one last"])
def test_e6_workers_wait_for_each_other_and_the_last_to_end_counts(turn):
    schedule, kv_tokens = [["judge"], ["one", "other"]][::turn], [10, 20][::turn]
    # judge: at 7 / 2 + 4, on a worker that holds half as much and has nothing of its prompt.
    assert token_steps(schedule, CALLS, kv_tokens) == pytest.approx(3.5 + 4 + (3 * 16 + 6) / 10)
    assert token_steps([], {}, []) == 0


def test_an_order_that_contradicts_what_is_needed_is_broken():
    with pytest.raises(AssertionError, match="'one'"):
        ends([["judge", "one"]], CALLS, [10])
