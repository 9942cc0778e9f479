"""Cost of hardware, bought on credit and operated, or rented: per hour, workflow and token.

Bought hardware is paid back in equal monthly payments (an annuity), and draws its rated power all
the time, as in section 5.1 of Asgar, Nguyen and Katti (2025), whose terms are the defaults. They
leave out hosting, which is 0 here unless given.
"""

from typing import Literal

import msgspec

from kairos.capacity.hardware import Accelerator
from kairos.core import SetupError

HOURS_PER_MONTH = 730.0  # 8760 a year


class Terms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Terms of payment."""

    prices: Literal["bought", "rented"] = "bought"
    years: float = 4.0  # until it is paid back
    interest: float = 0.08  # a year
    usd_per_kwh: float = 0.40
    overhead: float = 1.0  # power drawn from the grid over that of devices (PUE)
    hosting_usd_per_kw_month: float = 0.0


class HourlyCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of one device in USD per hour."""

    capital: float  # the payment, or the rent
    energy: float = 0.0
    hosting: float = 0.0
    kwh: float = 0.0  # drawn in an hour
    paid: str = "bought"  # or rented

    @property
    def total(self) -> float:
        return self.capital + self.energy + self.hosting


def payment_per_month(price_usd: float, years: float, interest: float) -> float:
    """Return the annuity: the equal payment at the end of each month."""
    months = years * 12
    if interest == 0:
        return price_usd / months
    monthly = interest / 12
    return float(price_usd * monthly / (1 - (1 + monthly) ** -months))


def hourly_cost(device: Accelerator, terms: Terms) -> HourlyCost:
    """Return the cost on these terms; without a price for them, on the other ones.

    Raises SetupError: the catalogue has no price for the device, or the terms are invalid.
    """
    rented = device.bought is None or (terms.prices == "rented" and device.rented is not None)
    check_terms(terms)
    price = device.rented if rented else device.bought
    if price is None:
        raise SetupError(
            f"{device.name} has no price: give one in a catalogue of your own, or leave "
            f"{device.name} out"
        )
    kwh = device.watts / 1000 * terms.overhead
    if rented:
        return HourlyCost(capital=price.usd, kwh=kwh, paid="rented")
    return HourlyCost(
        capital=payment_per_month(price.usd, terms.years, terms.interest) / HOURS_PER_MONTH,
        energy=kwh * terms.usd_per_kwh,
        hosting=device.watts / 1000 * terms.hosting_usd_per_kw_month / HOURS_PER_MONTH,
        kwh=kwh,
    )


def check_terms(terms: Terms) -> None:
    """Raise SetupError if the terms are invalid."""
    if not (terms.years > 0 and terms.interest >= 0 and terms.usd_per_kwh >= 0):
        raise SetupError("years must be above 0, interest and usd_per_kwh 0 or more")


def per_workflow(usd_per_hour: float, workflows_per_s: float) -> float:
    return usd_per_hour / (workflows_per_s * 3600)


def per_million_tokens(usd_per_hour: float, tokens_per_s: float) -> float:
    """Return USD per million tokens."""
    return usd_per_hour / (tokens_per_s * 3600) * 1e6
