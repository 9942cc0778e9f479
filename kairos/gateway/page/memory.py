"""What each instance's KV memory holds, is kept for, and is expected to hold: for people to see."""

import msgspec
import numpy as np

from kairos.core.dispatcher.demand import SLOT_AT_US, SLOTS, Floats
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.dispatcher.occupancy import BySurvival
from kairos.core.model import SECOND, Instance

_SHOWN_US = SECOND * np.arange(24)  # one number a second is enough to see
_WIDE = 2.0  # standard deviations: an instance rarely holds more


class MemoryView(msgspec.Struct, frozen=True, kw_only=True):
    """In tokens. The lists are what is expected, from now on, every `step_s`."""

    size: int | None  # null: not known
    held: int  # by calls, as Kairos counts them
    kept: int  # free, but kept for calls that are likely to come back for their context
    step_s: float = 1.0
    expected: list[int]  # held and kept, on average
    high: list[int]  # rarely more


class MemoryOutlook:
    """The default placement's forecast, whichever placement decides. It looks and changes nothing;
    what it derived it keeps to itself, half a second long (`core/dispatcher/occupancy.py`)."""

    def __init__(self) -> None:
        self._survival = BySurvival()

    def view(self, ledger: Ledger, instance: Instance, at: int) -> MemoryView:
        """Of an instance that is in use, at the instant of the last fact."""
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
        """What calls will hold: mean and standard deviation, by slot."""
        flight = ledger.flight(instance.id)
        if not flight:
            return np.zeros(SLOTS), np.zeros(SLOTS)
        derived = self._survival.derived(ledger, instance, flight, at)
        times = derived.times(at)
        mean, variance, _ = derived.held
        return times * mean, np.sqrt(np.maximum(0.0, times * variance))


def _rounded(tokens: Floats) -> list[int]:
    return [round(each) for each in np.interp(_SHOWN_US, SLOT_AT_US, tokens).tolist()]
