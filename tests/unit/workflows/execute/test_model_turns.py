"""Which device has which model when."""

import pytest

from kairos.workflows.compile.device_work import LoadTime, OperatorWork
from kairos.workflows.execute.model_turns import DeviceTurn, ModelTurns, SwitchModel

LOADS = {"small": LoadTime(load_us=10.0), "large": LoadTime(load_us=10.0)}
DRAFT = DeviceTurn("small", ("draft",))
CHECK = DeviceTurn("large", ("check",))
WORKS = [
    OperatorWork(name="draft", model="small", calls=4, run_us=(40.0,)),
    OperatorWork(name="check", model="large", calls=4, run_us=(40.0,), needs=("draft",)),
]


def begun(*turns, works=WORKS):
    made = ModelTurns(turns, works, LOADS)
    for each in made.begin():
        made.loaded(each.device)
    return made


def test_each_device_begins_with_its_first_model_and_calls_wait_until_it_is_there():
    turns = ModelTurns([[DRAFT, CHECK], [CHECK]], WORKS, LOADS)
    assert turns.begin() == [SwitchModel(0, DRAFT), SwitchModel(1, CHECK)]
    assert turns.opened() == frozenset()
    turns.loaded(1)
    assert turns.opened() == {"check"}


def test_a_device_switches_when_nothing_of_its_phase_is_wanted_and_something_of_the_next_is():
    turns = begun([DRAFT, CHECK])
    assert turns.look({}, {}) == []  # nothing was read yet
    assert turns.look({"draft": 2, "check": 5}, {"draft": 2}) == []
    assert turns.look({"draft": 0, "check": 5}, {}) == [SwitchModel(0, CHECK)]
    assert turns.opened() == frozenset()
    assert turns.look({"check": 5}, {}) == []  # it loads
    turns.loaded(0)
    assert turns.opened() == {"check"}
    assert turns.look({"draft": 9, "check": 1}, {"check": 1}) == []
    assert turns.look({"draft": 9}, {}) == [SwitchModel(0, DRAFT)]  # the next batch of rows


def test_a_turn_that_is_over_comes_again_only_after_those_behind_it():
    """Although its model never left: the turns of a device are a circle."""
    works = [*WORKS, OperatorWork(name="other", model="small", calls=4, run_us=(40.0,))]
    turns = begun([DRAFT, DeviceTurn("small", ("other",)), CHECK], works=works)
    assert turns.look({"other": 3, "check": 5}, {}) == []  # the next turn, of the same model
    assert turns.look({"draft": 2, "check": 5}, {}) == [SwitchModel(0, CHECK)]


def test_a_device_waits_for_what_comes_from_another():
    turns = begun([DRAFT], [CHECK, DRAFT])
    assert turns.look({"draft": 100}, {"draft": 2}) == []
    # Nothing comes from operators whose model is nowhere.
    alone = begun([CHECK, DRAFT])
    assert alone.look({"draft": 100}, {}) == [SwitchModel(0, DRAFT)]


def test_a_model_that_is_elsewhere_is_loaded_only_where_it_is_worth_it():
    works = [WORKS[0], WORKS[1], OperatorWork(name="x", model="small", calls=1, run_us=(10.0,))]
    few = begun([DRAFT, CHECK], [CHECK], works=works)
    assert few.look({"check": 1}, {"check": 1}) == []  # 10 us, shared: 5, and a load takes 10
    many = begun([DRAFT, CHECK], [CHECK], works=works)
    assert many.look({"check": 30}, {"check": 4}) == [SwitchModel(0, CHECK)]


def test_the_last_device_with_a_model_leaves_it_only_once_its_calls_have_ended():
    works = [*WORKS, OperatorWork(name="other", model="small", calls=4, run_us=(40.0,))]
    turns = begun([DRAFT, CHECK], [CHECK, DeviceTurn("small", ("other",))], works=works)
    wanted = {"draft": 0, "other": 3, "check": 50}
    assert turns.look(wanted, {"other": 2}) == []
    assert "other" not in turns.opened()  # no new ones
    assert turns.look(wanted, {"other": 0}) == [SwitchModel(0, CHECK)]


def test_operators_that_are_nowhere_placed_belong_to_their_model():
    works = [*WORKS, OperatorWork(name="merge", model="large", calls=1, run_us=(1.0,))]
    turns = begun([DRAFT, CHECK], works=works)
    assert turns.look({"merge": 1}, {}) == [SwitchModel(0, CHECK)]
    turns.loaded(0)
    assert turns.opened() == {"check", "merge"}


@pytest.mark.parametrize("wanted", [{}, {"draft": 3}])
def test_with_one_model_nothing_is_ever_switched(wanted):
    turns = begun([DRAFT], [DRAFT])
    assert turns.look(wanted, {}) == []
    assert turns.opened() == {"draft"}
