"""KV memory of each instance, for the page: used, reserved, and forecast."""

import msgspec
import numpy as np

from kairos.core import SECOND, SLOT_AT_US, SLOTS, BySurvival, Floats, Instance, Ledger

_SHOWN_US = SECOND * np.arange(24)  # one number a second is enough to see
_WIDE = 2.0  # standard deviations: an instance rarely holds more


class MemoryView(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in tokens. The lists are forecasts from now on, one value every `step_s`."""

    size: int | None  # null: not known
    held: int  # by calls, as Kairos counts them
    kept: int  # free, but reserved for calls that are likely to reuse their prefix
    step_s: float = 1.0
    expected: list[int]  # held and kept, on average
    high: list[int]  # rarely more


class MemoryOutlook:
    """Forecast of the default placement, whichever placement decides.

    It changes nothing: its derived tables are its own, with slots of half a second
    (`core/dispatcher/occupancy.py`).
    """

    def __init__(self) -> None:
        self._survival = BySurvival()

    def view(self, ledger: Ledger, instance: Instance, at: int) -> MemoryView:
        """Return the view of an instance in use, at the time of the last fact."""
        kept = ledger.retention.kept(instance.id).by_slot(at)
        mean, spread = self._expected(ledger, instance, at)
        return MemoryView(
            size=instance.kv_tokens,
            held=round(ledger.held_tokens(instance.id, at)),
            kept=round(float(kept[0])),
            expected=_rounded(mean + kept),
            high=_rounded(mean + kept + _WIDE * spread),
        )

    def _expected(self, ledger: Ledger, instance: Instance, at: int) -> tuple[Floats, Floats]:
        """Return the tokens that calls will hold: mean and standard deviation, by slot."""
        flight = ledger.flight(instance.id)
        if not flight:
            return np.zeros(SLOTS), np.zeros(SLOTS)
        derived = self._survival.derived(ledger, instance, flight, at)
        times = derived.times(at)
        mean, variance, _ = derived.held
        return times * mean, np.sqrt(np.maximum(0.0, times * variance))


def _rounded(tokens: Floats) -> list[int]:
    return [round(each) for each in np.interp(_SHOWN_US, SLOT_AT_US, tokens).tolist()]
