"""Each thing that must hold while instances are killed is missed where it does not."""

import msgspec
import pytest

from kairos.core import SECOND
from tests.acceptance import restarts_verdict
from tests.acceptance.restarts_verdict import Figures
from tests.soak.client import made_up

FIGURES = Figures(
    before=100, down=50, down_share=0.5, least_share=0.46, back_s=12, after_share=1.0
)  # fmt: skip


def outcome(end, detail="", **asked):
    return made_up(end, detail, ended_at=1060 * SECOND, **asked)


def test_figures_that_are_as_they_must_be_are_right():
    assert list(restarts_verdict.of_figures(1, FIGURES)) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"down_share": 0.45}, "one instance does 45% of what two did"),
        ({"back_s": 30.5}, "back 30.5 s after"),
        ({"back_s": None}, "back never after"),
        ({"after_share": 0.89}, "does not stay back: 89%"),
    ],
)
def test_figures_that_are_not_are_told(changed, said):
    (complaint,) = restarts_verdict.of_figures(3, msgspec.structs.replace(FIGURES, **changed))
    assert said in complaint
    assert complaint.startswith("cycle 3: ")


@pytest.mark.parametrize(
    ("seen", "hurt", "wrong"),
    [
        (outcome("answered"), {}, False),
        (outcome("answered"), {"a"}, False),
        (outcome("error in stream"), {"a"}, False),
        (outcome("cut off"), {"a"}, False),
        (outcome("error in stream"), {}, True),
        (outcome("cut off"), {"b"}, True),
        (outcome("error", detail="503 upstream_unreachable"), {"a"}, True),
        (outcome("error in stream", streamed=False), {"a"}, True),
        (outcome("gave up"), {"a"}, True),
        (outcome("gave up"), {}, True),
        (outcome("wrong answer"), {"a"}, True),
        (outcome("no answer"), {"a"}, True),
    ],
)
def test_all_but_streams_on_an_instance_that_was_killed_are_to_be_answered(seen, hurt, wrong):
    complaints = list(restarts_verdict.of_outcomes([seen], hurt))
    assert len(complaints) == wrong
    assert all(f"was not answered: {seen.end}" in each for each in complaints)
