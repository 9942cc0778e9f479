import msgspec
import pytest

from experiments import e32_constants
from experiments.e32_constants import WAYS, Row, named, ratios_of, section
from kairos.balancer import Balancer
from kairos.dispatcher import occupancy, survival_packing
from kairos.scheduler import policies

pytestmark = pytest.mark.interpreted

CONSTANTS = named()


@pytest.mark.parametrize("constant", CONSTANTS.values(), ids=CONSTANTS.keys())
def test_a_constant_is_where_it_is_said_to_be_and_both_changes_are_undone(constant):
    before = constant.value
    for way in WAYS:
        changed = constant.changed_to(way)
        with constant.set_to(changed):
            assert constant.value == changed != before
        assert constant.value == before


def test_whoever_imports_a_constant_by_name_has_the_changed_one_too():
    with CONSTANTS["Memory: FREE"].set_to(0.5):
        assert (occupancy.FREE, survival_packing.FREE) == (0.5, 0.5)
    assert survival_packing.FREE == occupancy.FREE < 0.5


def test_defaults_of_the_balancer_follow_and_come_back():
    defaults = Balancer.__init__.__kwdefaults__
    before = dict(defaults)
    with CONSTANTS["Order: BACKFILL"].set_to(1):
        assert defaults == before | {"backfill": 1}
    assert defaults == before


def test_an_attribute_of_a_class_is_changed_there():
    with CONSTANTS["Order: LEVEL"].set_to(2.0):
        assert policies.LeastWorkLeft.LEVEL == 2.0


def row(**said):
    base = Row(
        commit="c",
        workload=e32_constants.OTHER_INPUTS,
        seed=1,
        constant=None,
        way=None,
        value=None,
        calls=1,
        e2e_mean_s=100.0,
        e2e_p99_s=1.0,
        preemptions_per_call=0.0,
        cached_prompt_share=0.0,
        queued_share=0.0,
        cpu_s=60.0,
    )
    return msgspec.structs.replace(base, **said)


def test_the_section_tells_what_changed_and_what_did_not():
    spread, level = "Memory: SPREAD", "Order: LEVEL"
    rows = [row()]
    rows += [row(constant=spread, way="half", value="1", e2e_mean_s=110.0)]
    rows += [row(constant=level, way=way, value="2") for way in WAYS]

    assert ratios_of(rows)[spread, "half", e32_constants.OTHER_INPUTS] == [1.1]
    said = section(rows)
    assert "1.100" in said
    assert f"Nothing at all changes with `{level}`" in said
    [unchanged] = [line for line in said.splitlines() if line.startswith("Nothing at all")]
    [missing] = [line for line in said.splitlines() if line.startswith("Not measured")]
    assert "`Order: SHARE`" in missing
    assert "`Order: SHARE`" not in unchanged


def test_a_changed_constant_changes_a_run(monkeypatch):
    monkeypatch.setattr(e32_constants, "COUNTS", dict.fromkeys(e32_constants.COUNTS, 40))
    change = "Memory: SPREAD", CONSTANTS["Memory: SPREAD"], "twice"

    base = e32_constants._run(e32_constants.OTHER_INPUTS, 1)
    again = e32_constants._run(e32_constants.OTHER_INPUTS, 1)
    changed = e32_constants._run(e32_constants.OTHER_INPUTS, 1, change)

    assert base.e2e_mean_s == again.e2e_mean_s != changed.e2e_mean_s
    assert changed.value == "4.0"
