"""Helium's algorithm 1 as it is published: the order that Kairos's own is compared with.

Depth first down the tree of prompts, so calls that begin alike follow each other. Of a node's
children goes first where a call can begin and most depends on it: the longest way to the end, in
token steps. A call may begin when the delay of all that it needs has passed; where none may, the
one that may first is forced. What is left is gone through again.

Deviations: one worker. The best child is chosen again after each, as in the paper's proof of
complexity (appendix B).
"""

from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter

from experiments.token_steps import usage
from kairos.workflows.compile.call_shapes import PromptSegment, ScheduledCall, delay

_DEEPEST = 100  # nodes of the tree; what is behind counts as one


class _Node:
    __slots__ = ("calls", "children")

    def __init__(self) -> None:
        self.children: dict[PromptSegment | str, _Node] = {}  # a call is a child by its name
        self.calls: list[str] = []  # in it and below, those that are left


def helium_order(calls: Mapping[str, ScheduledCall], kv_tokens: int) -> tuple[str, ...]:
    """Return all calls, each after the calls that it needs."""
    return _Scheduling(calls, kv_tokens).order()


class _Progress:
    """The calls that were scheduled on the worker, and their ends, in token steps."""

    def __init__(self, calls: Mapping[str, ScheduledCall], kv_tokens: int) -> None:
        self.calls, self._kv_tokens = calls, kv_tokens
        self.now = 0.0
        self.done: dict[str, float] = {}  # when each ends
        self.needed_by: dict[str, list[str]] = {name: [] for name in calls}
        self._open = {name: len(set(each.after)) for name, each in calls.items()}
        self._begins_at = dict.fromkeys(calls, 0.0)
        for name, each in calls.items():
            for needed in set(each.after):
                self.needed_by[needed].append(name)

    def is_open(self, name: str) -> bool:
        """Whether something that it needs has not been scheduled."""
        return self._open[name] > 0

    def begins_at(self, name: str) -> float:
        """The earliest, as far as all that it needs has been scheduled."""
        return self._begins_at[name]

    def schedule(self, name: str) -> list[str]:
        """Put a call next. Return what had waited for it alone."""
        call = self.calls[name]
        before = self.calls[next(reversed(self.done))] if self.done else None
        self.now = max(self.now, self._begins_at[name]) + usage(before, call, self._kv_tokens)
        self.done[name] = self.now
        free = []
        for waits in self.needed_by[name]:
            self._open[waits] -= 1
            self._begins_at[waits] = max(self._begins_at[waits], self.now + delay(call))
            if not self._open[waits]:
                free.append(waits)
        return free


class _Scheduling:
    def __init__(self, calls: Mapping[str, ScheduledCall], kv_tokens: int) -> None:
        self._state = _Progress(calls, kv_tokens)
        self._root = _Node()
        self._place = {name: at for at, name in enumerate(calls)}
        self._to_end = dict(_ways_to_end(self._state, kv_tokens))
        for name, call in calls.items():
            node = self._root
            node.calls.append(name)
            keys: list[PromptSegment | str] = [*call.prompt[:_DEEPEST], name]
            for key in keys:
                node = node.children.setdefault(key, _Node())
                node.calls.append(name)

    def order(self) -> tuple[str, ...]:
        while self._root.calls:
            before = len(self._root.calls)
            self._go_through(self._root, force=False)
            if len(self._root.calls) == before:
                self._go_through(self._root, force=True)
        return tuple(self._state.done)

    def _go_through(self, node: _Node, *, force: bool) -> None:
        """Schedule what may begin; with `force` the first call in any case."""
        if not node.children:
            (name,) = node.calls
            if force or self._state.begins_at(name) <= self._state.now:
                self._state.schedule(name)
                node.calls.clear()
            return
        tried: set[PromptSegment | str] = set()
        while (key := self._best_child(node, tried, force=force)) is not None:
            tried.add(key)
            child = node.children[key]
            self._go_through(child, force=force)
            force = False
            if not child.calls:
                del node.children[key]
        node.calls = [name for name in node.calls if name not in self._state.done]

    def _best_child(
        self, node: _Node, tried: set[PromptSegment | str], *, force: bool
    ) -> PromptSegment | str | None:
        """None: nothing in the others may be scheduled."""
        ranks = (
            (self._rank(child, force=force), key)
            for key, child in node.children.items()
            if key not in tried
        )
        known = [(rank, at, key) for at, (rank, key) in enumerate(ranks) if rank is not None]
        return min(known)[2] if known else None

    def _rank(self, node: _Node, *, force: bool) -> tuple[float, ...] | None:
        """Return the rank of the best call in it, the least first."""
        state, ranks = self._state, []
        for name in node.calls:
            if name in state.done or state.is_open(name):
                continue
            begins_at = state.begins_at(name)
            if force:
                ranks.append((begins_at, -self._to_end[name], float(self._place[name])))
            elif begins_at <= state.now:
                ranks.append((-self._to_end[name], begins_at, float(self._place[name])))
        return min(ranks, default=None)


def _ways_to_end(state: _Progress, kv_tokens: int) -> Iterator[tuple[str, float]]:
    """Yield token steps from the beginning of each call to the end of all that depends on it."""
    calls = state.calls
    ways: dict[str, float] = {}
    for name in reversed(
        [*TopologicalSorter({n: c.after for n, c in calls.items()}).static_order()]
    ):
        behind = (ways[each] for each in state.needed_by[name])
        own = usage(None, calls[name], kv_tokens)
        most = max(behind, default=None)
        ways[name] = own if most is None else own + delay(calls[name]) + most
        yield name, ways[name]
