"""Approximate index of the prompt prefixes in each instance's prefix cache. Not in the paper.

Engines do not report their caches, but what was sent to them is known, and vLLM evicts the least
recently used. So the index of an instance is an LRU list of stretches of prompts, each from one
mark to the next, and of answers, which are never matched but use memory; together they are as large
as the instance's KV memory. A reply that reports fewer cached tokens than expected corrects the
index: everything unused for longer than the missing tokens is dropped, too. Exact cache events of
the engines could replace it behind the same methods.

A prompt has dozens of marks, and most calls share all of them, so marks are not handled one by one.
Marks at which no two known prompts diverge form a run; runs form a tree, which a prompt descends
with a few comparisons. An instance has a prefix of a run cached, since a use covers everything
before, and the end is evicted first. The LRU list is one of uses, each with the runs that were not
used again since.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from kairos.core.dispatcher.prefix_runs import (
    Held,
    PrefixRun,
    PrefixRuns,
    Use,
    add_ends,
    at_most,
    ends_of,
    up_from,
)
from kairos.core.model import Instance, Request

_UNKNOWN_KV_TOKENS = 100_000  # assumed memory of an instance that does not report it
_MISSED = 0.5  # if a smaller share of the expected tokens was found, the rest was evicted


class _Begun:
    """Expectation for a call when it was dispatched."""

    def __init__(self, last: PrefixRun | None, cached: int, in_use: int, used_at: int) -> None:
        self.last: Final = last  # last run of its prompt; None: it has no mark
        self.cached: Final = cached  # cached tokens of its prompt
        self.in_use: Final = in_use  # those in use by calls in flight: perhaps not computed yet
        self.used_at: Final = used_at  # last use of the stretch among these unused for longest


class _Cache:
    """Assumed cache of one instance."""

    def __init__(self, instance: Instance) -> None:
        self.id = instance.id
        self.size = instance.kv_tokens or _UNKNOWN_KV_TOKENS
        # Oldest first; uses with only runs in use left are not in it, see `_evict`.
        self.uses: OrderedDict[Use, None] = OrderedDict()
        self.tokens = 0
        self.shared_tokens = 0  # tokens shared by calls in flight, counting all copies but one
        self.begun: dict[str, _Begun] = {}  # calls in flight, by id


class PrefixIndex:
    """Assumed caches by instance.

    Each method takes O(runs of the prompt), amortised, and marks are compared by the C library.
    """

    def __init__(self) -> None:
        self._caches: dict[str, _Cache] = {}
        self.runs = PrefixRuns()  # results of the methods change only with these
        self.left = 0  # number of times an instance has left

    def add_instance(self, instance: Instance) -> None:
        """Add an instance, or replace its limits. Without a prefix cache it has nothing."""
        if not instance.prefix_caching:
            self.remove_instance(instance.id)
        elif instance.id in self._caches:
            cache = self._caches[instance.id]
            cache.size = instance.kv_tokens or _UNKNOWN_KV_TOKENS
            self._make_room(cache)
        else:
            self._caches[instance.id] = _Cache(instance)

    def remove_instance(self, instance_id: str) -> None:
        cache = self._caches.pop(instance_id, None)
        if cache is not None:
            in_use = [begun.last for begun in cache.begun.values()]
            for last in [*in_use, *[use.last for use in cache.uses]]:
                for run in up_from(last):
                    if instance_id in run.held:
                        self._drop(run, instance_id)
        self.runs.forget(instance_id)
        self.left += 1

    def match(self, request: Request) -> Mapping[str, int]:
        """Return the cached tokens of the prompt by instance id, for instances that have any."""
        found: dict[str, int] = {}
        for run, marks in reversed(self.runs.down(request.prefix)):
            add_ends(found, run.held, marks)
            if len(found) == len(self._caches):
                break
        # At least the last token of a prompt is always computed.
        return at_most(request.prompt_tokens - 1, found)

    def cached_tokens(self, request: Request, instance_id: str) -> int:
        """Return the result of `match` for one instance."""
        return self.of_one(request, instance_id)[1]

    def of_one(self, request: Request, instance_id: str) -> tuple[int, int]:
        """Return the results of `in_use` and `match` for one instance."""
        in_use = cached = 0
        for run, marks in self.runs.down(request.prefix):
            if (held := run.held.get(instance_id)) is not None:
                cached = held.ends[min(marks, len(held.ends)) - 1]
                in_use = cached if instance_id in run.in_use else in_use
        return min(in_use, request.prompt_tokens), min(cached, request.prompt_tokens - 1)

    def in_use(self, request: Request) -> Mapping[str, int]:
        """Return the tokens of the prompt that calls in flight use already, by instance id."""
        found: dict[str, int] = {}
        for run, marks in reversed(self.runs.down(request.prefix)):
            add_ends(found, run.in_use, marks)
            if len(found) == len(self._caches):
                break
        # A stretch is as long as the first prompt with it reported.
        return at_most(request.prompt_tokens, found)

    def shared_tokens(self, instance_id: str) -> int:
        """Return the prompt tokens shared by calls in flight there, counting all copies but one."""
        cache = self._caches.get(instance_id)
        return cache.shared_tokens if cache is not None else 0

    def is_in_use(self, request: Request) -> bool:
        """Return whether any call in flight has a prompt with the same beginning."""
        first, _ = self.runs.beginning(request.prefix)
        return first is not None and bool(first.in_use)

    def begin_use(self, request: Request, instance_id: str, at: int) -> int:
        """Record that a request is dispatched, and return the cached tokens of its prompt."""
        cache = self._caches.get(instance_id)
        if cache is None:
            return 0
        last = self.runs.last(request.prefix)
        cached, in_use, used_at = 0, 0, at
        way = [*up_from(last)]
        for run in reversed(way):
            held = run.held.get(instance_id)
            if held is None:
                break
            cached, used_at = held.ends[-1], min(used_at, held.use.at)
            if held.users:
                in_use = cached
        cached = min(cached, request.prompt_tokens - 1)
        cache.begun[request.id] = _Begun(last, cached, in_use, used_at)
        if last is not None:
            self._hold(request, way, cache, at)
            for run in way:
                self._use(run, cache)
            self._make_room(cache)
        return cached

    def end_use(
        self, request: Request, instance_id: str, answer: int, cached: int | None, at: int
    ) -> None:
        """Record the end of a request.

        `answer`: tokens of its answer. `cached`: prompt tokens that the engine found in its cache;
        None: not reported.
        """
        cache = self._caches.get(instance_id)
        if cache is None:
            return
        # None: the call began before the instance joined, so it uses nothing recorded since.
        begun = cache.begun.pop(request.id, None)
        last = self.runs.last(request.prefix) if begun is None else begun.last
        way = [*up_from(last)]
        use = self._hold(request, way, cache, at)
        if begun is not None:
            for run in way:
                self._use_no_more(run, cache)
        computed = last.held[instance_id].ends[-1] if last is not None else 0
        use.answer = max(0, request.prompt_tokens - computed) + answer
        cache.tokens += use.answer
        if use.is_over:
            del cache.uses[use]
        if cached is not None and begun is not None and _was_evicted(begun, cached):
            self._evict_unused_since(cache, begun.used_at)
        self._make_room(cache)

    def _hold(self, request: Request, way: list[PrefixRun], cache: _Cache, at: int) -> Use:
        """Record that all runs are cached and used now. `way`: runs of the prompt, last first."""
        use = Use(way[0] if way else None, at)
        cache.uses[use] = None
        end, instance_id = 0, cache.id
        for run in reversed(way):
            held = run.held.get(instance_id)
            if held is None:
                held = run.held[instance_id] = Held(end, [], use)
            else:
                before = held.use
                before.runs -= 1
                if before.is_over:
                    cache.uses.pop(before, None)
                held.use = use
            use.runs += 1
            if len(held.ends) < len(run.names):
                had = held.tokens
                held.ends += ends_of(request, run, held)
                cache.tokens += held.tokens - had
                self.runs.has_changed(run, cache.id)
            end = held.ends[-1]
        return use

    def _use(self, run: PrefixRun, cache: _Cache) -> None:
        """Record one more call in flight that uses the run."""
        held = run.held[cache.id]
        held.users += 1
        if held.users == 1:
            run.in_use[cache.id] = held
            self.runs.has_changed(run, cache.id)
        else:
            cache.shared_tokens += held.tokens

    def _use_no_more(self, run: PrefixRun, cache: _Cache) -> None:
        held = run.held[cache.id]
        held.users -= 1
        if held.users:
            cache.shared_tokens -= held.tokens
        else:
            del run.in_use[cache.id]
            self.runs.has_changed(run, cache.id)

    def _make_room(self, cache: _Cache) -> None:
        """Evict until the cache fits its size; runs used by calls in flight stay."""
        if cache.tokens <= cache.size or not cache.uses:
            return
        newest = next(reversed(cache.uses))
        while cache.tokens > cache.size:
            use = next(iter(cache.uses))
            self._evict(use, cache)
            if use is newest:
                return

    def _evict(self, use: Use, cache: _Cache) -> None:
        """Evict the runs last used at this use, as far as necessary.

        Runs in use are moved to another use outside the LRU list until their calls end, which use
        them again: otherwise each eviction in a full instance would walk the whole list.
        """
        again = Use(use.last, use.at)
        for run in up_from(use.last):
            if cache.tokens <= cache.size:
                break
            held = run.held.get(cache.id)
            if held is None or held.use is not use:
                continue
            if held.users:
                held.use = again
                again.runs, use.runs = again.runs + 1, use.runs - 1
            else:
                self._shorten(run, held, cache)
        if cache.tokens > cache.size:
            cache.tokens, use.answer = cache.tokens - use.answer, 0
        if use.is_over:
            del cache.uses[use]

    def _shorten(self, run: PrefixRun, held: Held, cache: _Cache) -> None:
        """Evict the end of a cached run, as far as necessary."""
        while held.ends and cache.tokens > cache.size:
            end = held.ends.pop()
            cache.tokens -= end - held.end
        if held.ends:
            self.runs.has_changed(run, cache.id)
        else:
            held.use.runs -= 1
            self._drop(run, cache.id)

    def _evict_unused_since(self, cache: _Cache, at: int) -> None:
        for use in [each for each in cache.uses if each.at <= at]:
            for run in up_from(use.last):
                held = run.held.get(cache.id)
                if held is not None and held.use is use and not held.users:
                    cache.tokens -= held.tokens
                    use.runs -= 1
                    self._drop(run, cache.id)
            cache.tokens, use.answer = cache.tokens - use.answer, 0
            if use.is_over:
                del cache.uses[use]

    def _drop(self, run: PrefixRun, instance_id: str) -> None:
        """Record that nothing of the run is cached there any more."""
        del run.held[instance_id]
        run.in_use.pop(instance_id, None)
        self.runs.has_changed(run, instance_id)
        if not run.held:
            self.runs.remove(run)


def _was_evicted(begun: _Begun, cached: int) -> bool:
    """Return whether too few of the expected tokens were found, so that the rest must be evicted.

    If not even the tokens in use by calls in flight were found, these had not been computed yet,
    and nothing can be concluded.
    """
    return _MISSED * begun.in_use <= cached < _MISSED * begun.cached
