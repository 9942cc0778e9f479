"""Each thing that must hold while instances are killed is missed where it does not."""

import msgspec
import pytest

from kairos.events import Arrived, Bounced, Dispatch, Finished, Record
from kairos.model import SECOND
from tests.acceptance import restarts_verdict
from tests.acceptance.chats import Goodput
from tests.acceptance.restarts_verdict import Cycle, Figures
from tests.soak.asks import Ask
from tests.soak.client import Outcome
from tests.support import build

CYCLE = Cycle(
    victim="one", how="all of it", began=1000, killed=1050, restarted=1070, ready=1100, ended=1180
)
FIGURES = Figures(
    before=100, down=50, down_share=0.5, least_share=0.46, back_s=12, after_share=1.0
)  # fmt: skip


def goodput(*parts):
    """So many tokens a second, from and until these instants."""
    made = Goodput()
    for per_s, since, until in parts:
        for second in range(since, until):
            made.add([second + 0.5], per_s)
    return made


def outcome(end, name="a", detail="", *, streamed=True):
    ask = Ask(
        id=name, at_s=0, kind="well", headers={}, body=b"", streamed=streamed, says="",
        patience_s=1,
    )  # fmt: skip
    return Outcome(ask, end, 0.1, 1060 * SECOND, detail)


def test_tokens_count_when_they_come():
    made = Goodput()
    made.add([1.0, 2.0, 3.0, 4.0], 8)
    assert made.per_s(0, 10) == pytest.approx(0.8)
    assert made.per_s(1, 3) == pytest.approx(2)
    assert made.per_s(5, 10) == 0


def test_goodput_is_told_before_while_one_is_down_and_after():
    made = goodput((100, 1000, 1050), (60, 1050, 1090), (40, 1090, 1105), (100, 1105, 1180))
    told = restarts_verdict.figures(CYCLE, made)
    assert told.before == pytest.approx(100)
    assert told.down == pytest.approx(56)
    assert told.down_share == pytest.approx(0.56)
    assert told.least_share == pytest.approx(0.4)
    # Nine of ten seconds, or nearly so, are as before.
    assert told.back_s == pytest.approx(14, abs=0.6)
    assert told.after_share == pytest.approx(1)


def test_goodput_that_does_not_return_is_told():
    made = goodput((100, 1000, 1050), (50, 1050, 1180))
    told = restarts_verdict.figures(CYCLE, made)
    assert told.back_s is None
    assert told.after_share == pytest.approx(0.5)
    assert len(list(restarts_verdict.of_figures(1, told))) == 2


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


def test_each_instance_is_on_a_core_of_its_own():
    assert list(restarts_verdict.of_pins([{0}, {1}])) == []
    assert list(restarts_verdict.of_pins([{0}, {0}])) == ["instances share a core"]
    assert "instance 2 is not on one core: [0, 1]" in restarts_verdict.of_pins([{0}, {0, 1}])


def arrived(name):
    return Arrived(build.request(name))


def sent(at, name, instance):
    return Record(int(at * SECOND), arrived(name), (Dispatch(name, instance),))


def test_calls_that_an_instance_had_when_it_was_killed_are_known():
    records = [
        sent(1020, "before", "one"),
        sent(1021, "elsewhere", "other"),
        sent(1022, "on", "one"),
        sent(1023, "moved", "one"),
        Record(1040 * SECOND, Finished("before")),
        Record(1050 * SECOND + 1, Bounced("moved", "x"), (Dispatch("moved", "other"),)),
        sent(1051, "unnoticed", "one"),
        sent(1060, "later", "one"),
        Record(1061 * SECOND, Finished("on")),
    ]
    assert restarts_verdict.killed_with(CYCLE, records) == {"on", "moved", "unnoticed"}


def test_a_run_is_told_in_a_table():
    made = goodput((100, 1000, 1050), (50, 1050, 1100), (100, 1100, 1180))
    told = restarts_verdict.table(
        [CYCLE], made, [outcome("answered"), outcome("cut off")], [1052 * SECOND, 5 * SECOND]
    )
    head, rule, row, _, words = told.splitlines()
    assert head.count("|") == rule.count("|") == row.count("|")
    assert "| 1 | all of it of one | 100 | 50 | 50% | 50% | 50 s (30 s) |" in row
    assert "| 1 answered, 1 cut off | 1 |" in row
    assert words.startswith("two instances: median 100 tokens/s (100 to 100)")
