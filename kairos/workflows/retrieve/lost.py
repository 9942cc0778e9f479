"""Error for values that stayed with a processor and are gone."""

from collections.abc import Iterable

from kairos.core import KairosError


class ValuesLost(KairosError):
    """Values that a call needs are gone: their processor died, or they were evicted.

    `ids`: the lost values. They can be recomputed.
    """

    status = 410
    code = "values_lost"

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = tuple(ids)
        super().__init__(
            f"{len(self.ids)} values that are needed are no longer held by their processor"
        )
