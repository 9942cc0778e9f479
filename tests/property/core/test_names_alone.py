"""Programs that send names alone: learnt graphs equal the programs' own."""

import pytest

from experiments.e59_names_alone import look

FEW, MANY = 40, 2_000
NUMBERS = [FEW, pytest.param(MANY, marks=[pytest.mark.long, pytest.mark.timeout(900)])]


def counted(programs, **kind):
    counts = {}
    for seed in range(programs):
        look(seed, counts, **kind)
    return counts


@pytest.mark.parametrize("programs", NUMBERS)
def test_no_remainder_is_too_large_where_there_are_no_joins(programs):
    counts = counted(programs, joins=False)

    assert counts["learnt"].wrong_callers == counts["learnt"].programs_too_large == 0
    assert counts["guessed"].programs_too_large > programs / 2  # so there was something to learn


@pytest.mark.parametrize("programs", NUMBERS)
def test_joins_are_found_where_another_branch_than_the_named_one_may_end_last(programs):
    counts = counted(programs, joins=True)

    least = 0.95 if programs == MANY else 0.9  # of few programs one join is 2 %
    assert counts["learnt"].shown_found >= least * counts["learnt"].shown
    assert counts["named alone"].shown_found == 0
    assert counts["learnt"].too_small < counts["named alone"].too_small / 3
