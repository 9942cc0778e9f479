"""G8: four years, 8 %, 0.40 per kWh: what an hour, a workflow and a token cost."""

import msgspec
import pytest

from kairos.capacity.hardware_options import load_catalogue
from kairos.capacity.ownership import (
    Terms,
    hourly_cost,
    payment_per_month,
    per_million_tokens,
    per_workflow,
)
from kairos.core import SetupError

FOUND = load_catalogue()
H100, L40S, H200 = (FOUND.accelerator_named(name) for name in ("h100", "l40s", "h200"))


def test_g8_a_loan_is_paid_back_by_its_payments():
    left = 25000.0
    monthly = payment_per_month(25000.0, years=4, interest=0.08)
    for _ in range(48):
        left = left * (1 + 0.08 / 12) - monthly
    assert left == pytest.approx(0.0, abs=1e-6)
    assert monthly == pytest.approx(610.32, abs=0.01)
    assert payment_per_month(4800.0, years=4, interest=0.0) == 100.0


def test_g8_an_hour_of_a_bought_h100_is_its_payment_and_its_power():
    found = hourly_cost(H100, Terms(years=4, interest=0.08, usd_per_kwh=0.40))
    assert found.capital == pytest.approx(610.32 / 730, abs=1e-4)
    assert found.energy == pytest.approx(0.7 * 0.40)
    assert found.kwh == 0.7
    assert found.total == pytest.approx(1.1161, abs=1e-4)


def test_g8_the_terms_are_inputs():
    dear = hourly_cost(
        H100,
        Terms(years=2, interest=0.16, usd_per_kwh=0.8, overhead=1.5, hosting_usd_per_kw_month=100),
    )
    assert dear.energy == pytest.approx(0.7 * 1.5 * 0.8)
    assert dear.hosting == pytest.approx(0.7 * 100 / 730)
    assert dear.capital == pytest.approx(payment_per_month(25000.0, 2, 0.16) / 730)


def test_g8_rented_hardware_costs_its_rent_and_still_draws_power():
    found = hourly_cost(H200, Terms(prices="rented"))
    assert (found.total, found.capital, found.energy) == (4.59, 4.59, 0.0)
    assert found.kwh == 0.7


def test_g8_per_workflow_and_per_million_tokens():
    assert per_workflow(36.0, workflows_per_s=2.0) == pytest.approx(0.005)
    assert per_million_tokens(3.6, tokens_per_s=1000.0) == pytest.approx(1.0)


def test_what_has_no_price_is_refused_with_what_to_do():
    with pytest.raises(SetupError, match="l40s has no price: give one"):
        hourly_cost(msgspec.structs.replace(L40S, rented=None), Terms())
    with pytest.raises(SetupError, match="years must be above 0"):
        hourly_cost(H100, Terms(years=0))


@pytest.mark.parametrize(
    ("name", "payments", "total"),
    [
        ("a40", 0.100, 0.220),
        ("a100", 0.268, 0.428),
        ("gaudi3", 0.418, 0.778),
        ("mi300x", 0.669, 0.969),
        ("h100", 0.836, 1.116),
        ("b200", 1.338, 1.738),
    ],
)
def test_g8_hours_by_the_papers_terms_are_those_of_the_table_in_the_docs(name, payments, total):
    found = hourly_cost(FOUND.accelerator_named(name), Terms())
    assert found.capital == pytest.approx(payments, abs=5e-4)
    assert found.total == pytest.approx(total, abs=6e-4)
