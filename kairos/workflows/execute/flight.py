"""Calls of an executor, with the slots that wait for them."""

from collections.abc import Iterator

from kairos.workflows.compile.operators import Generation, Operator
from kairos.workflows.execute.behaviours import WantsCall
from kairos.workflows.execute.frames import Slot


def key_of(operator: Operator, signature: str) -> str:
    """Return the signature, with `on_cut` and `parse` where these may change the value."""
    params = operator.params
    if isinstance(params, Generation) and (params.on_cut, params.parse) != ("error", "strict"):
        return f"{signature} {params.on_cut} {params.parse}"
    return signature


class Flight:
    """Call, with the slots that wait for it.

    `number` names it in commands; `items` are the finished items of an answer that is still being
    written. `then`: calls for which it recomputes a lost value; `missing`: number of such calls
    that it waits for; `lost`: how often its values were lost.
    """

    __slots__ = ("attempt", "items", "lost", "missing", "number", "operator", "reserved_tokens",
                 "then", "waiting", "wants")  # fmt: skip

    def __init__(
        self, number: int, operator: Operator, wants: WantsCall, first: "Slot | Flight"
    ) -> None:
        """Make a call. `first`: the slot, or the call, that waits for it."""
        self.number, self.operator, self.wants = number, operator, wants
        self.waiting: list[Slot] = []
        self.items: list[object] = []
        self.then: list[Flight] = []
        if isinstance(first, Flight):
            self.then.append(first)
        else:
            self.waiting.append(first)
        self.lost = self.missing = 0
        self.attempt = 1
        self.reserved_tokens = 0

    @property
    def key(self) -> str:
        """Return the key that calls with the same result share."""
        return key_of(self.operator, self.wants.signature)

    @property
    def leader(self) -> Slot:
        """Return the slot for whose row the call is made: the first that still wants it."""
        found = next(self._wanting(), None)
        if found is None:
            return self.waiting[0] if self.waiting else self.then[0].leader
        return found

    @property
    def wanted(self) -> bool:
        return any(True for _ in self._wanting())

    def _wanting(self) -> Iterator[Slot]:
        for slot in self.waiting:
            if slot[0].row.alive:
                yield slot
        for each in self.then:
            yield from each._wanting()
