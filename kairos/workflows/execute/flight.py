"""One call of an executor, with those who wait for it."""

from collections.abc import Iterator

from kairos.workflows.compile.operators import Generation, Operator
from kairos.workflows.execute.behaviours import WantsCall
from kairos.workflows.execute.frames import Slot


def key_of(operator: Operator, signature: str) -> str:
    """Return the signature, with `on_cut` and `parse` where another value may come by these."""
    params = operator.params
    if isinstance(params, Generation) and (params.on_cut, params.parse) != ("error", "strict"):
        return f"{signature} {params.on_cut} {params.parse}"
    return signature


class Flight:
    """One call, and who waits for it. `number` names it in commands; `items` are those that its
    answer has, as far as it is told while it is written. `then`: the calls for which it makes a
    value again that was lost; `missing`: how many such calls it waits for; `lost`: how often."""

    __slots__ = ("attempt", "items", "lost", "missing", "number", "operator", "reserved_tokens",
                 "then", "waiting", "wants")  # fmt: skip

    def __init__(
        self, number: int, operator: Operator, wants: WantsCall, first: "Slot | Flight"
    ) -> None:
        """`first`: that waits for it, or the call that does."""
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
        """Return what calls with the same result have in common."""
        return key_of(self.operator, self.wants.signature)

    @property
    def leader(self) -> Slot:
        """Whose row the call is made for: the first that still wants it."""
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
