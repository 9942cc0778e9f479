"""One caller whose calls kill real vLLM, beside others."""

import math

import pytest

from tests.faults.villain import Told, always_the_same
from tests.faults.villain_vllm import (
    BEFORE_S,
    BESIDE_S,
    play,
    two_that_die,
    until_well,
    wrong,
)
from tests.soak.client import made_up
from tests.support.vllm import needs_vllm


@pytest.mark.acceptance
@pytest.mark.timeout(900)
@pytest.mark.xfail(
    strict=False,
    reason="who was in flight with the killer may wait for a spare engine longer than its client",
)
async def test_nobody_else_notices(tmp_path):
    needs_vllm()
    async with two_that_die(tmp_path) as (served, mortals):
        await play(served, mortals, "first", seconds=5)
        before = await play(served, mortals, "before", seconds=BEFORE_S)
        beside = await play(served, mortals, "beside", seconds=BESIDE_S, poison=always_the_same)
        await until_well(served)
    assert list(wrong(before, beside)) == []


def outcome(end="answered", detail="", seconds=1.0):
    return made_up(end, detail, seconds=seconds)


BEFORE = Told([outcome()] * 9)
REFUSED = [outcome("error", "502 call_breaks_engines"), outcome("gave up")]


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        (Told([outcome(seconds=1.5)], REFUSED, 1, 1), None),
        (Told([outcome(seconds=1.6)], REFUSED, 1, 1), "others' mean is 1.60 s"),
        (Told([outcome(), outcome("error", "503 x")], REFUSED, 1, 1), "others' calls failed"),
        (Told([outcome()], REFUSED, 1, 2), "2 instances were in doubt"),
        (Told([outcome()], REFUSED, 0, 0), "this shows nothing"),
        (Told([outcome()], [outcome("error", "503 no_instance")], 1, 1), "503 no_instance"),
        (Told([outcome()], [outcome("no answer")], 1, 1), "the villain was told"),
    ],
)
def test_what_is_wrong_is_told(beside, said):
    complaints = list(wrong(BEFORE, beside))
    assert [said in each for each in complaints] == ([] if said is None else [True])


def test_nobody_answered_is_no_mean():
    assert math.isnan(Told([outcome("error")]).mean_s)
