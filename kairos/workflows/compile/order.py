"""Find an order of a flow's calls that maximises prefix cache hits, near the optimum.

The problem is Helium's cache-aware scheduling (section 5 of its paper): calls on one worker, in
token steps. With M tokens of KV memory, an answer of `out` tokens and `new` prompt tokens that a
call does not share with the one before it, the call takes `(out * new + out * (out + 1) / 2) / M`;
calls that need its answer begin `out` token steps after its end (`experiments/token_steps.py`).
In a depth-first walk of the tree of prompts, calls with a common prefix follow each other; calls
with many dependants should be early, and no call before the calls it needs have ended.

Deviations: Helium's algorithm 1 is one depth-first pass. With answers of different lengths it is
far from the optimum, so several quick orders are made, the best of them improved by moving calls,
alone, in small groups, and with their dependencies, and few calls are searched exhaustively. In a
subtree the shortest answer goes first: it computes the shared prefix. One order is used for all
instances, since the instance of a call is chosen when it is ready; it is applied as best effort:
the first call of the order that may begin is sent.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise

from kairos.workflows.compile.call_shapes import PromptSegment, ScheduledCall, delay

_SEARCHED = 14  # calls that are searched exhaustively, within _NODES
_NODES = 40_000
_STEPS = 200_000  # calls evaluated while orders are improved: about 0.05 s
_WIDELY = 40  # up to this many calls, one may move anywhere; else by _REACH places
_REACH = 12
_MANY = 400  # calls, above which only some of the candidates are compared
_LOOKED_AT = 16  # candidates of each kind
_DEEPEST = 100  # nodes of the tree; the rest of a path counts as one
_LONGING = (0.0, 0.03, 0.1, 0.15, 0.2, 0.3, 1.0, 1_000.0)  # weights of a call's dependants
_LONGING_OF_MANY = (0.03, 0.1, 0.15, 0.2, 0.3)

Order = tuple[int, ...]


def cache_aware_order(calls: Mapping[str, ScheduledCall], kv_tokens: int) -> tuple[str, ...]:
    """Return all calls, each after the calls it needs. Dependencies must be given, without cycles.

    Deterministic. The time grows with the square of the calls up to 400, and slower beyond.
    """
    problem = _Problem(calls, kv_tokens)
    found = sorted(problem.quick_orders(), key=problem.steps)
    best = found[0]
    if problem.has_needs:
        best = min((problem.improve(each) for each in found[:3]), key=problem.steps)
        if len(calls) <= _SEARCHED:
            best = _Search(problem, best).best
    return tuple(problem.names[each] for each in best)


class _Problem:
    """Calls by number, in the given order."""

    def __init__(self, calls: Mapping[str, ScheduledCall], kv_tokens: int) -> None:
        self.names = [*calls]
        number = {name: at for at, name in enumerate(self.names)}
        given = [*calls.values()]
        self.answers = [each.completion_tokens for each in given]
        self.delays = [delay(each) for each in given]
        self.after = [sorted({number[name] for name in each.after}) for each in given]
        self.needed_by: list[list[int]] = [[] for _ in given]
        for at, needs in enumerate(self.after):
            for needed in needs:
                self.needed_by[needed].append(at)
        self.has_needs = any(self.after)
        self._kv_tokens = kv_tokens
        self._paths, self._tokens = _tree(given)
        self._rows: dict[int, list[float]] = {}
        self.least = [each * (each + 1) / 2 / kv_tokens for each in self.answers]

    def row(self, before: int) -> list[float]:
        """Return the cost of each call after another one; -1: after none."""
        row = self._rows.get(before)
        if row is None:
            tokens = self._tokens
            there = set(self._paths[before]) if before >= 0 else {0}
            row = self._rows[before] = []
            for path, answer, least in zip(self._paths, self.answers, self.least, strict=True):
                shared = next(tokens[node] for node in reversed(path) if node in there)
                new = tokens[path[-1]] - shared
                row.append(answer * new / self._kv_tokens + least)
        return row

    def between(self, before: int, call: int) -> float:
        """Return the cost of a call after another one, without a whole row if calls are many."""
        if len(self.names) <= _MANY:
            return self.row(before)[call]
        tokens, shared = self._tokens, 0
        if before >= 0:
            for one, other in zip(self._paths[before], self._paths[call], strict=False):
                if one != other:
                    break
                shared = tokens[one]
        new = tokens[self._paths[call][-1]] - shared
        return self.answers[call] * new / self._kv_tokens + self.least[call]

    def steps(self, order: Order) -> float:
        """Return when the last call ends, in token steps."""
        return _Trial(self, order).steps

    def begins(self, call: int, now: float, ended: Sequence[float]) -> float:
        """Return when the next call may begin, at the earliest from `now`."""
        for needed in self.after[call]:
            now = max(now, ended[needed] + self.delays[needed])
        return now

    def quick_orders(self) -> Iterator[Order]:
        """Yield several orders that respect dependencies, by simple rules."""
        down = self.down_the_tree()
        yield self.respecting(down)
        to_end = self.to_end(self.least)
        yield self.respecting(sorted(range(len(down)), key=lambda call: -to_end[call]))
        if self.has_needs:
            for longing in _LONGING if len(self.names) <= _MANY else _LONGING_OF_MANY:
                yield self._greedy(to_end, longing)

    def down_the_tree(self) -> list[int]:
        """Return the calls depth first; in each node the child with the least answer first.

        Without dependencies this is the best order: tokens that a node adds to prompts are computed
        once, by the least answer below it.
        """
        least: dict[int, int] = {}
        children: dict[int, dict[int, None]] = {}
        here: dict[int, list[int]] = {}
        for call, path in enumerate(self._paths):
            for node in path:
                least[node] = min(least.get(node, self.answers[call]), self.answers[call])
            for node, child in pairwise(path):
                children.setdefault(node, {})[child] = None
            here.setdefault(path[-1], []).append(call)
        found: list[int] = []
        look = [0]
        while look:
            node = look.pop()
            if node < 0:
                found.append(-node - 1)
                continue
            behind = [(least[child], child) for child in children.get(node, ())]
            behind += [(self.answers[call], -call - 1) for call in here.get(node, ())]
            behind.sort(key=lambda each: each[0])
            look += [each for _, each in reversed(behind)]
        return found

    def to_end(self, least: Sequence[float]) -> list[float]:
        """Return token steps from the end of each call to the end of all its dependants.

        `least`: what each call takes.
        """
        found = [0.0] * len(self.names)
        for call in reversed(self.respecting(range(len(self.names)))):
            behind = (least[each] + found[each] for each in self.needed_by[call])
            found[call] = max((self.delays[call] + each for each in behind), default=0.0)
        return found

    def respecting(self, wanted: Sequence[int]) -> Order:
        """Return the order that always takes the first wanted call whose dependencies have gone."""
        place = {call: at for at, call in enumerate(wanted)}
        waits_for = [len(each) for each in self.after]
        ready = [place[call] for call in place if not waits_for[call]]
        heapq.heapify(ready)
        found = []
        while ready:
            call = wanted[heapq.heappop(ready)]
            found.append(call)
            for waits in self.needed_by[call]:
                waits_for[waits] -= 1
                if not waits_for[waits]:
                    heapq.heappush(ready, place[waits])
        assert len(found) == len(wanted), "calls need each other in a circle"
        return tuple(found)

    def _greedy(self, to_end: Sequence[float], longing: float) -> Order:
        """Order calls greedily: the soonest and cheapest next. `longing`: weight of dependants."""
        waits_for = [len(each) for each in self.after]
        begins = [0.0] * len(self.names)
        ready = _Ready(self._paths, to_end)
        for call, count in enumerate(waits_for):
            if not count:
                ready.add(call)
        found: list[int] = []
        now, last = 0.0, -1
        while ready:
            best, least = -1, math.inf
            for call in ready.worth_a_look(last):
                takes = self.between(last, call)
                price = max(0.0, begins[call] - now) + takes - longing * to_end[call]
                if price < least:
                    best, least, best_takes = call, price, takes
            last = best
            ready.remove(last)
            found.append(last)
            now = max(now, begins[last]) + best_takes
            for waits in self.needed_by[last]:
                waits_for[waits] -= 1
                begins[waits] = max(begins[waits], now + self.delays[last])
                if not waits_for[waits]:
                    ready.add(waits)
        return tuple(found)

    def improve(self, order: Order) -> Order:
        """Return an order that no move improves, or the best when _STEPS are used up."""
        budget, best = _STEPS // 3, list(order)
        moves = _Moves(self)
        while budget >= 0:
            trial = _Trial(self, best)
            found = None
            for first, moved in moves.of(best):
                budget -= len(best) - first
                if trial.betters(first, moved):
                    found = moved
                    if len(best) > _WIDELY:
                        break  # the first that is better will do
                if budget < 0:
                    break
            if found is None:
                break
            best = found
        return tuple(best)


class _Ready:
    """Calls whose dependencies have gone.

    Of many calls only some are candidates: ones that share a prefix with the last call, ones with
    the longest path behind them, and ones that have waited longest.
    """

    def __init__(self, paths: Sequence[Sequence[int]], to_end: Sequence[float]) -> None:
        self._paths = paths
        self._to_end = to_end
        self._calls: dict[int, None] = {}
        self._below: dict[int, dict[int, None]] = {}  # by node of the tree
        self._longest: list[tuple[float, int]] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, call: int) -> None:
        self._calls[call] = None
        if len(self._paths) > _MANY:
            for node in self._paths[call]:
                self._below.setdefault(node, {})[call] = None
            heapq.heappush(self._longest, (-self._to_end[call], call))

    def remove(self, call: int) -> None:
        del self._calls[call]
        if len(self._paths) > _MANY:
            for node in self._paths[call]:
                del self._below[node][call]

    def worth_a_look(self, last: int) -> Iterable[int]:
        """Return the candidates to follow the last call; -1: at the start."""
        if len(self._paths) <= _MANY or len(self._calls) <= 3 * _LOOKED_AT:
            return self._calls
        found: dict[int, None] = {}
        for node in reversed(self._paths[last] if last >= 0 else ()):
            found |= dict.fromkeys(islice(self._below.get(node, ()), _LOOKED_AT))
            if len(found) >= _LOOKED_AT:
                break
        longest: list[tuple[float, int]] = []
        while self._longest and len(longest) < _LOOKED_AT:
            each = heapq.heappop(self._longest)
            if each[1] in self._calls:
                longest.append(each)
        for each in longest:
            heapq.heappush(self._longest, each)
        found |= dict.fromkeys(call for _, call in longest)
        return found | dict.fromkeys(islice(self._calls, _LOOKED_AT))


class _Trial:
    """Compares orders with the best so far, from the first difference on."""

    def __init__(self, problem: _Problem, order: Sequence[int]) -> None:
        self._problem = problem
        self._ended = [0.0] * len(order)
        now, last = 0.0, -1
        for call in order:
            now = problem.begins(call, now, self._ended) + problem.between(last, call)
            self._ended[call] = now
            last = call
        self.steps = now

    def betters(self, first: int, moved: Sequence[int]) -> bool:
        """Return whether an order costs less; if so, later ones are compared with it."""
        problem, ended = self._problem, self._ended.copy()
        last = moved[first - 1] if first else -1
        now = ended[last] if first else 0.0
        limit = self.steps - 1e-9
        after, delays, between = problem.after, problem.delays, problem.between
        for at in range(first, len(moved)):
            call = moved[at]
            for needed in after[call]:
                may = ended[needed] + delays[needed]
                now = max(now, may)
            now = ended[call] = now + between(last, call)
            if now >= limit:
                return False
            last = call
        self.steps = now
        return True


class _Moves:
    """Orders that differ from one by a move, and still respect dependencies."""

    def __init__(self, problem: _Problem) -> None:
        self._problem = problem
        count = len(problem.names)
        self._before: list[set[int]] = [set() for _ in range(count)]  # all that a call needs
        self._behind: list[set[int]] = [set() for _ in range(count)]
        for call in problem.respecting(range(count)):
            for needed in problem.after[call]:
                self._before[call] |= self._before[needed] | {needed}
        for call, before in enumerate(self._before):
            for needed in before:
                self._behind[needed].add(call)

    def of(self, order: list[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield other orders, each with the first place at which it differs."""
        place = {call: at for at, call in enumerate(order)}
        reach = len(order) if len(order) <= _WIDELY else _REACH
        for size in (1, 2, 3):
            for at in range(len(order) - size + 1):
                yield from self._of_block(order, place, at, size, reach)
        for call in order:
            yield from self._with_needs(order, place[call], reach)
            yield from self._with_dependants(order, place[call], reach)

    def _of_block(
        self, order: list[int], place: Mapping[int, int], at: int, size: int, reach: int
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield orders with a block of consecutive calls moved."""
        problem = self._problem
        block = order[at : at + size]
        rest = order[:at] + order[at + size :]
        needs = (place[each] + 1 for call in block for each in problem.after[call])
        lowest = max((each for each in needs if each <= at), default=0)
        needed = (place[each] - size for call in block for each in problem.needed_by[call])
        highest = min((each for each in needed if each >= at), default=len(rest))
        for to in range(max(lowest, at - reach), min(highest, at + reach) + 1):
            if to != at:
                yield min(to, at), [*rest[:to], *block, *rest[to:]]

    def _with_needs(self, order: list[int], at: int, reach: int) -> Iterator[tuple[int, list[int]]]:
        """Yield orders with a call moved forward, together with its dependencies in between."""
        wanted = self._before[order[at]]
        if not wanted:
            return
        for to in range(max(0, at - reach), at):
            taken = [call for call in order[to:at] if call in wanted]
            if not taken:
                return
            left = [call for call in order[to:at] if call not in wanted]
            yield to, [*order[:to], *taken, order[at], *left, *order[at + 1 :]]

    def _with_dependants(
        self, order: list[int], at: int, reach: int
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield orders with a call moved back, together with its dependants in between."""
        wanted = self._behind[order[at]]
        if not wanted:
            return
        for to in range(min(len(order) - 1, at + reach), at, -1):
            taken = [call for call in order[at + 1 : to + 1] if call in wanted]
            if not taken:
                return
            left = [call for call in order[at + 1 : to + 1] if call not in wanted]
            yield at, [*order[:at], *left, order[at], *taken, *order[to + 1 :]]


class _Search:
    """Exhaustive search of orders that may beat the best known, within _NODES."""

    def __init__(self, problem: _Problem, known: Order) -> None:
        self.best = known
        self._problem = problem
        self._steps = problem.steps(known) - 1e-9
        count = len(known)
        self._least = [
            min(problem.row(before)[call] for before in range(-1, count) if before != call)
            for call in range(count)
        ]
        self._to_end = problem.to_end(self._least)
        self._nodes = _NODES
        self._seen: dict[tuple[int, int], list[tuple[float, ...]]] = {}
        self._ended = [0.0] * count
        self._go_on([], 0, 0.0, sum(self._least))

    def _go_on(self, order: list[int], done: int, now: float, left: float) -> None:
        """Try each possible next call. `done`: a bit for each call that has gone."""
        self._nodes -= 1
        problem, count = self._problem, len(self._ended)
        if len(order) == count:
            if now < self._steps:
                self.best, self._steps = tuple(order), now
            return
        if self._nodes < 0 or now + left >= self._steps or self._is_behind(order, done, now):
            return
        row = problem.row(order[-1] if order else -1)
        may = []
        for call in range(count):
            if done >> call & 1 or not all(done >> each & 1 for each in problem.after[call]):
                continue
            begins = problem.begins(call, now, self._ended)
            if begins + self._least[call] + self._to_end[call] >= self._steps:
                return  # starting it later only makes it worse
            may.append((begins + row[call], call))
        for ends, call in sorted(may):
            before, self._ended[call] = self._ended[call], ends
            self._go_on([*order, call], done | 1 << call, ends, left - self._least[call])
            self._ended[call] = before

    def _is_behind(self, order: list[int], done: int, now: float) -> bool:
        """Return whether the same calls have gone before with the same last one, and no later."""
        problem = self._problem
        state = (now, *(
            max(now, self._ended[call] + problem.delays[call])
            for call in range(len(self._ended))
            if done >> call & 1 and not all(done >> each & 1 for each in problem.needed_by[call])
        ))  # fmt: skip
        known = self._seen.setdefault((done, order[-1] if order else -1), [])
        if any(all(a <= b for a, b in zip(each, state, strict=True)) for each in known):
            return True
        known.append(state)
        return False


def _tree(calls: Sequence[ScheduledCall]) -> tuple[list[list[int]], list[int]]:
    """Return the path of each call's prompt through a tree, and the tokens up to each node's end.

    Paths begin at the root, 0.
    """
    tokens = [0]
    nodes: dict[tuple[int, PromptSegment | int], int] = {}
    paths = []
    for call, each in enumerate(calls):
        path = [0]
        parts: list[tuple[PromptSegment | int, int]] = [
            (part, part.tokens) for part in each.prompt[:_DEEPEST]
        ]
        if len(each.prompt) > _DEEPEST:
            parts.append((call, sum(part.tokens for part in each.prompt[_DEEPEST:])))
        for part, size in parts:
            node = nodes.setdefault((path[-1], part), len(tokens))
            if node == len(tokens):
                tokens.append(tokens[path[-1]] + size)
            path.append(node)
        paths.append(path)
    return paths, tokens
