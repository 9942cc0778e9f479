"""Two minutes of load before engines that are tormented; `python -m tests.soak` takes longer."""

import pytest

from tests.soak.chaos import BLOWS
from tests.soak.engine import STANDIN
from tests.soak.soak import Soak

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

SECONDS = 120


async def test_every_call_has_one_outcome_whatever_engines_do_and_nothing_is_left_behind(tmp_path):
    soak = Soak(tmp_path, seconds=SECONDS, seed=1, kind=STANDIN, engines=3, show=print)
    wrong = await soak.run()

    print(soak.summary())
    assert wrong == []
    # Or the run shows nothing.
    assert soak.blows.keys() == BLOWS.keys()
    assert soak.told.keys() >= {"an engine less", "an engine more", "wrong", "another limit"}
    ends = {each.end for each in soak.outcomes}
    assert {"answered", "error", "left"} <= ends
    # No engine dies of it, so none is found to: it has failed on each engine.
    poisonous = {each.detail for each in soak.outcomes if each.ask.kind == "poisonous"}
    assert "503 upstream_unreachable" in poisonous
    assert soak.goodput.could > len(soak.outcomes) / 4
