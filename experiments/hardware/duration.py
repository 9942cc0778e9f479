"""How long a task takes on some hardware, and what it costs: its terms apart.

Section 3.1.1 of Asgar, Nguyen and Katti (2025): the slowest resource decides, and static latency,
transfer and synchronisation are added. Two deviations: the paper's text calls the maximum "latency
for the slowest task in the graph", but it is that of the slowest resource of one task; and the time
in a queue, which it leaves out, is a term here.
"""

from collections.abc import Mapping

import msgspec

from kairos.errors import SetupError


class Duration(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds."""

    resources: Mapping[str, float]  # what each alone would take
    latency: float = 0.0  # static: the network, launching, what is outside
    transfer: float = 0.0  # between devices
    synchronisation: float = 0.0  # of parallel parts
    queueing: float = 0.0

    @property
    def total(self) -> float:
        working = max(self.resources.values(), default=0.0)
        return working + self.latency + self.transfer + self.synchronisation + self.queueing

    @property
    def bottleneck(self) -> str | None:
        """The resource that decides; None: no resource is used."""
        used = {name: seconds for name, seconds in self.resources.items() if seconds}
        return max(used, key=lambda name: used[name]) if used else None


def duration(
    work: Mapping[str, float],
    rates: Mapping[str, float],
    *,
    latency: float = 0.0,
    transfer: float = 0.0,
    synchronisation: float = 0.0,
    queueing: float = 0.0,
) -> Duration:
    """From work and rates per second, by resource, in the same units.

    Raises:
        SetupError: there is work for a resource that the hardware does not have.
    """
    for name, amount in work.items():
        if amount and not rates.get(name):
            raise SetupError(f"there is work for '{name}', which this hardware does not have")
    return Duration(
        resources={name: amount / rates[name] for name, amount in work.items() if amount},
        latency=latency,
        transfer=transfer,
        synchronisation=synchronisation,
        queueing=queueing,
    )


def cost(
    work: Mapping[str, float],
    usd_per_unit: Mapping[str, float],
    *,
    transfer: float = 0.0,
    usd_per_transfer: float = 0.0,
) -> float:
    """USD: each resource's work at its price, and the transfer at its weight (gamma).

    A resource without a price costs nothing.
    """
    used = sum(amount * usd_per_unit.get(name, 0.0) for name, amount in work.items())
    return used + transfer * usd_per_transfer
