"""Cache hits of an order of calls, as estimated before a run."""

import pytest

from kairos.workflows.compile.expected_calls import ExpectedCalls
from kairos.workflows.compile.fluid_engine import FluidCall
from kairos.workflows.compile.order_trial import Sample, TrialEngine, tried
from kairos.workflows.compile.passes.order import AS_DECLARED, CallOrder, of_sequences

ROLE, TEXT = 64, 128  # tokens, whole blocks
TWO = (("a", "A", ()), ("b", "B", ("a",)))  # name, role, needs


def sample(operators, rows=3, out=16, goes_on=()):
    """Make rows of operators that each begin with a role and go on with the row's own text.

    `goes_on`: whose prompts go on with the prompt and answer of the first that they need.
    """
    found = ExpectedCalls()
    for row in range(rows + 1):
        number = {}
        for name, role, needs in operators:
            after = tuple(number[each] for each in needs)
            prefixes = [(hash(role), ROLE), (hash((role, row)), ROLE + TEXT)]
            if name in goes_on:
                before = found.calls[after[0]]
                prefixes = [*before.prefixes, (before.answered, before.prompt_tokens + out)]
                prefixes.append((hash((name, row)), prefixes[-1][1] + 16))
            number[name] = len(found.calls)
            found.operators.append(name)
            found.calls.append(
                FluidCall(
                    row=row,
                    prompt_tokens=prefixes[-1][1] + 1,
                    completion_tokens=out,
                    prefixes=tuple(prefixes),
                    answered=hash(("answer", name, row)),
                    after=after,
                )
            )
    return Sample(found, rows)


def engine(blocks, sequences=1, released=1, **given):
    return TrialEngine(16 * blocks, sequences, released, **given)


def test_where_all_fits_each_row_computes_what_is_its_own_and_the_first_what_is_for_all():
    found = tried(sample(TWO), AS_DECLARED, engine(10_000), 6)

    assert found.asked == 6 * 2 * (ROLE + TEXT + 1)
    assert found.found == 5 * 2 * ROLE


def test_a_row_finds_its_text_again_where_the_role_is_the_same_and_what_goes_on_its_answer():
    same = (("a", "A", ()), ("b", "A", ("a",)))
    assert tried(sample(same), AS_DECLARED, engine(10_000), 1).found == ROLE + TEXT

    goes_on = sample(same, goes_on=("b",))
    assert tried(goes_on, AS_DECLARED, engine(10_000), 1).found == ROLE + TEXT + 16


@pytest.mark.parametrize("queues", [False, True])
def test_of_a_memory_of_one_call_nothing_is_found_row_by_row_and_roles_operator_by_operator(queues):
    small = engine(14, queues=queues)
    by_operator = CallOrder("", of_sequences("", (("a",), ("b",))).turns, together=8)

    assert tried(sample(TWO), AS_DECLARED, small, 8).found == 0
    assert tried(sample(TWO), by_operator, small, 8).found == 7 * 2 * ROLE


def test_more_calls_side_by_side_take_less_time_and_a_call_alone_has_room_however_large():
    slow, quick = (
        tried(sample(TWO), AS_DECLARED, engine(10_000, n, 2 * n), 8).took for n in (1, 4)
    )
    assert quick < slow / 2
    assert tried(sample(TWO), AS_DECLARED, engine(2, 4, 8), 8).asked > 0


def test_a_call_that_is_the_same_for_all_rows_is_made_once():
    found = ExpectedCalls()
    for row in range(4):
        if not row:
            found.operators.append("same")
            found.calls.append(
                FluidCall(
                    row=0, prompt_tokens=64, completion_tokens=4, prefixes=((1, 64),), answered=2
                )
            )
        else:
            found.joined.append((row, 0))
        found.operators.append("own")
        found.calls.append(
            FluidCall(
                row=row, prompt_tokens=64, completion_tokens=4, prefixes=((100 + row, 64),),
                answered=200 + row, after=(0,),
            )
        )  # fmt: skip
    assert tried(Sample(found, 3), AS_DECLARED, engine(1_000), 9).asked == 64 + 9 * 64
