"""Values that stayed with a processor, and are gone."""

from collections.abc import Iterable

from kairos.core.errors import KairosError


class ValuesLost(KairosError):
    """`ids`: of those that a call needs, and that whoever had them has no more: it died, or they
    were there for too long. They can be made again."""

    status = 410
    code = "values_lost"

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = tuple(ids)
        super().__init__(f"{len(self.ids)} values that are needed are no longer where they stayed")
