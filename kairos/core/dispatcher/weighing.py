"""Explanation of the default placement: the cost of a call on each instance."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kairos.core.dispatcher.compiled import expected_tokens
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.dispatcher.survival_packing import SurvivalPacking
from kairos.core.model import Instance, Request


class Weighed:
    """Cost and memory use of a call on one instance."""

    def __init__(
        self, instance: Instance, cost_us: float, cached_tokens: int, peak: float, capacity: float
    ) -> None:
        self.instance: Final = instance
        self.cost_us: Final = cost_us  # time that the call would add there
        self.cached_tokens: Final = cached_tokens  # prompt tokens expected in the prefix cache
        self.peak: Final = peak  # maximum tokens in use there with the call
        self.capacity: Final = capacity  # tokens that may be in use


class Weighing(SurvivalPacking):
    """Placement that reports its costs. Reservations for other requests are ignored."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger, kernel=None)

    def weigh(self, request: Request, serving: Sequence[Instance], at: int) -> list[Weighed]:
        if not serving:
            return []
        cached = self._ledger.prefixes.match(request) if request.prefix else {}
        here = np.array([float(cached.get(each.id, 0)) for each in serving])
        costs_us = self._costs_us(request, serving, here, expected_tokens(self._ledger, request))
        held = self._held(request, serving, at)
        peaks = self._loads(request, serving, held, at).max(axis=-1)
        room = self._capacities(serving, at)
        return [
            Weighed(each, cost_us, cached.get(each.id, 0), peak, capacity)
            for each, cost_us, peak, capacity in zip(
                serving, costs_us.tolist(), peaks.tolist(), room.tolist(), strict=True
            )
        ]
