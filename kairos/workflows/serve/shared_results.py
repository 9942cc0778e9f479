"""Results that a tenant's invocations share: an equal deterministic call is made once.

An invocation waits for an equal call that another one has in flight, and reuses a recent result.
Results are shared only within a tenant, and are bounded in bytes and seconds. Halo and Helium share
calls of a batch (consolidation, the prompt cache); sharing between invocations that arrive one by
one is not in the papers.

Invariant: a call that an invocation waits for is made by another one. So the other one hands on its
result, or, where it failed or was cancelled, the call itself.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from kairos.core import SharedLru
from kairos.workflows.execute.commands import (
    DropCall,
    FetchCached,
    FlowCommand,
    KeepAnswer,
    KeepResult,
)
from kairos.workflows.execute.facts import CacheAnswered, CallAnswered, CallBroke, FlowFact

MOST_BYTES = 64 << 20  # of all tenants
MOST_RESULT_BYTES = 256 << 10  # a larger one is passed to waiting invocations, but not cached
_ENTRY_BYTES = 500  # overhead of a cached result

_encode, _decode = msgspec.json.encode, msgspec.json.decode

_Key = tuple[str, str | None, str]  # tenant, usual model, signature
_Made = tuple[_Key, str]  # with the class of service of the call


class _Kept(NamedTuple):
    encoded: bytes
    until_s: float


class _Waiting(NamedTuple):
    invocation: "InvocationSharing"
    call: int


class SharedResults:
    """Cached results of one process, and its calls in flight."""

    def __init__(self, keep_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        """Keep each result for `keep_s` seconds."""
        self._keep_s, self._now_s = keep_s, now_s
        self._kept: SharedLru[_Key, _Kept] = SharedLru(MOST_BYTES)
        self._made: dict[_Made, deque[_Waiting]] = {}  # calls under way, and who waits for each

    @property
    def under_way(self) -> int:
        """Number of calls that others may wait for."""
        return len(self._made)

    def find(self, key: _Key) -> bytes | None:
        """Return a recent result as JSON; None if there is none."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        if kept.until_s <= self._now_s():
            self._kept.remove(key[0], key)
            return None
        self._kept.touch(key[0], key)
        return kept.encoded

    def join(self, made: _Made, waiting: _Waiting) -> bool:
        """Wait for a call in flight. Return whether there is one."""
        others = self._made.get(made)
        if others is not None:
            others.append(waiting)
        return others is not None

    def begin(self, made: _Made, waiting: Iterable[_Waiting] = ()) -> bool:
        """Note that a call is made. Return whether no equal call is in flight."""
        is_only = made not in self._made
        if is_only:
            self._made[made] = deque(waiting)
        return is_only

    def end(self, made: _Made, value: object) -> None:
        """Pass a call's result to all that wait for it, and cache it."""
        key, encoded = made[0], _encode(value)
        if len(encoded) <= MOST_RESULT_BYTES:
            kept = _Kept(encoded, self._now_s() + self._keep_s)
            self._kept.put(key[0], key, kept, len(encoded) + _ENTRY_BYTES)
        for each in self._made.pop(made):
            each.invocation.give(each.call, encoded)

    def give_up(self, made: _Made) -> None:
        """Let the first waiting invocation make the call, which failed or was cancelled."""
        waiting = self._made.pop(made)
        if waiting:
            first = waiting.popleft()
            first.invocation.make(first.call, made, waiting)

    def leave(self, made: _Made, waiting: _Waiting) -> None:
        """Stop waiting."""
        self._made[made].remove(waiting)


class InvocationSharing:
    """Sharing of one invocation: it takes results of others, and gives them its own."""

    def __init__(
        self,
        shared: SharedResults,
        of: tuple[str, str | None, str],
        tell: Callable[[CacheAnswered], None],
        heard: str | None = None,
    ) -> None:
        """Share for an invocation of a tenant, a usual model and a class of service (`of`).

        It does not wait for a call of another class. `heard`: the operator whose answer streams to
        the client; it does not wait for another invocation's.
        """
        self._shared, self._tell, self._heard = shared, tell, heard
        self._tenant, self._model, self._class = of
        self._makes: dict[int, list[_Made]] = {}  # by call
        self._waits: dict[int, _Made] = {}

    def fetch(self, command: FetchCached) -> None:
        """Answer at once, or when a call of another invocation has its result."""
        key = self._tenant, self._model, command.signature
        call, made = command.call, (key, self._class)
        encoded = self._shared.find(key)
        if encoded is not None:
            self.give(call, encoded)
        elif command.operator != self._heard and self._shared.join(made, _Waiting(self, call)):
            self._waits[call] = made
        else:
            self.make(call, made)

    def give(self, call: int, encoded: bytes) -> None:
        self._waits.pop(call, None)
        self._tell(CacheAnswered(call, True, _decode(encoded)))

    def make(self, call: int, made: _Made, waiting: Iterable[_Waiting] = ()) -> None:
        self._waits.pop(call, None)
        if self._shared.begin(made, waiting):
            self._makes.setdefault(call, []).append(made)
        self._tell(CacheAnswered(call, False))

    def handled(
        self, fact: FlowFact, commands: Iterable[FlowCommand], is_in_flight: Callable[[int], bool]
    ) -> None:
        """Pass on the results of calls that ended, unless they are retried."""
        if not self._makes:
            return
        ended = [fact.call] if isinstance(fact, CallAnswered | CallBroke) else []
        found: dict[str, object] = {}
        for each in commands:
            if isinstance(each, KeepAnswer):
                found[each.signature] = each.text
            elif isinstance(each, KeepResult) and each.store:
                found[each.signature] = each.value
            elif isinstance(each, DropCall):
                ended.append(each.call)
        for call in ended:
            if not is_in_flight(call):
                self._end(call, found)

    def _end(self, call: int, found: Mapping[str, object]) -> None:
        for made in self._makes.pop(call, ()):
            signature = made[0][2]
            if signature in found:
                self._shared.end(made, found[signature])
            else:
                self._shared.give_up(made)

    def leave(self) -> None:
        """Stop waiting, and leave its own calls to invocations that wait for them."""
        for call, made in self._waits.items():
            self._shared.leave(made, _Waiting(self, call))
        self._waits.clear()
        for calls in self._makes.values():
            for made in calls:
                self._shared.give_up(made)
        self._makes.clear()
