"""Which beginnings of prompts each instance still has in its prefix cache: an approximate index.

Nobody tells what an engine caches, but what was sent there is known, and vLLM evicts what was used
longest ago. So the index of an instance is an LRU list of stretches of prompts, each from one mark
to the next, and of answers, which nobody finds but which take room; together they are as large as
the instance's KV memory. A reply that tells fewer cached tokens than expected corrects it: what was
not used since those were is gone, too. Exact events of the engines' caches could take its place
behind the same methods.

A prompt has dozens of marks, and most calls use them all alike, so none is looked at by itself.
Marks between which no prompt was ever told from another are a run; runs are a tree, which a
prompt goes down by a few comparisons. What an instance holds of a run is its beginning, for a use
takes all that lies before, too, and what lies behind is evicted first. The LRU list is one of uses:
of each, that counts which was not used again. Ours.
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

_UNKNOWN_KV_TOKENS = 100_000  # of an instance that does not tell how much it holds
_MISSED = 0.5  # of what was expected: fewer tokens than that were found, so the rest was evicted


class _Begun:
    """What was expected of a call when it went to its instance."""

    def __init__(self, last: PrefixRun | None, cached: int, in_use: int, used_at: int) -> None:
        self.last: Final = last  # of its prompt; None: that has no mark
        self.cached: Final = cached  # tokens of its prompt
        self.in_use: Final = in_use  # of these, by calls in flight: perhaps not computed yet
        self.used_at: Final = used_at  # the stretch of these that was longest unused


class _Cache:
    """What one instance is taken to hold."""

    def __init__(self, instance: Instance) -> None:
        self.id = instance.id
        self.size = instance.kv_tokens or _UNKNOWN_KV_TOKENS
        # Longest ago first; without those of which only runs in use are left, see `_evict`.
        self.uses: OrderedDict[Use, None] = OrderedDict()
        self.tokens = 0
        self.shared_tokens = 0  # that calls in flight have in common, all but once
        self.begun: dict[str, _Begun] = {}  # calls in flight, by id


class PrefixIndex:
    """By instance. Each method takes O(runs of the prompt), amortised, and a comparison of marks
    is the C library's."""

    def __init__(self) -> None:
        self._caches: dict[str, _Cache] = {}
        self.runs = PrefixRuns()  # what is said here changes with them alone
        self.left = 0  # how often an instance did

    def join(self, instance: Instance) -> None:
        """Said again, its limits are replaced. Without a prefix cache it holds nothing."""
        if not instance.prefix_caching:
            self.leave(instance.id)
        elif instance.id in self._caches:
            cache = self._caches[instance.id]
            cache.size = instance.kv_tokens or _UNKNOWN_KV_TOKENS
            self._make_room(cache)
        else:
            self._caches[instance.id] = _Cache(instance)

    def leave(self, instance_id: str) -> None:
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
        """How many tokens of the prompt each instance has that has any, by id."""
        found: dict[str, int] = {}
        for run, marks in reversed(self.runs.down(request.prefix)):
            add_ends(found, run.held, marks)
            if len(found) == len(self._caches):
                break
        # Something of a prompt is always computed, if only its last token.
        return at_most(request.prompt_tokens - 1, found)

    def cached_tokens(self, request: Request, instance_id: str) -> int:
        """What `match` says of one instance."""
        return self.of_one(request, instance_id)[1]

    def of_one(self, request: Request, instance_id: str) -> tuple[int, int]:
        """What `in_use` and `match` say of one instance."""
        in_use = cached = 0
        for run, marks in self.runs.down(request.prefix):
            if (held := run.held.get(instance_id)) is not None:
                cached = held.ends[min(marks, len(held.ends)) - 1]
                in_use = cached if instance_id in run.in_use else in_use
        return min(in_use, request.prompt_tokens), min(cached, request.prompt_tokens - 1)

    def in_use(self, request: Request) -> Mapping[str, int]:
        """How many tokens of the prompt calls in flight hold already, by id of the instance."""
        found: dict[str, int] = {}
        for run, marks in reversed(self.runs.down(request.prefix)):
            add_ends(found, run.in_use, marks)
            if len(found) == len(self._caches):
                break
        # A stretch is as long as the first prompt with it said.
        return at_most(request.prompt_tokens, found)

    def shared_tokens(self, instance_id: str) -> int:
        """Of the prompts of calls in flight there: what several have in common, all but once."""
        cache = self._caches.get(instance_id)
        return cache.shared_tokens if cache is not None else 0

    def is_in_use(self, request: Request) -> bool:
        """Whether any call in flight has a prompt that begins alike."""
        first, _ = self.runs.beginning(request.prefix)
        return first is not None and bool(first.in_use)

    def begin(self, request: Request, instance_id: str, at: int) -> int:
        """The request goes there now. Returns how many tokens of its prompt were there already."""
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

    def end(
        self, request: Request, instance_id: str, answer: int, cached: int | None, at: int
    ) -> None:
        """The request has ended there, with so many tokens of an answer. `cached`: how much of its
        prompt the engine found in its cache, where it told."""
        cache = self._caches.get(instance_id)
        if cache is None:
            return
        # None: it began before the instance joined, and is no user of what is known since.
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
        """All of the runs are there, and used. `way`: those of the prompt, the last first."""
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
        """One more call in flight has it."""
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
        """What calls in flight use stays, whatever its age."""
        if cache.tokens <= cache.size or not cache.uses:
            return
        newest = next(reversed(cache.uses))
        while cache.tokens > cache.size:
            use = next(iter(cache.uses))
            self._evict(use, cache)
            if use is newest:
                return

    def _evict(self, use: Use, cache: _Cache) -> None:
        """What was used last then, as far as room is needed. What is in use is not looked at again
        until its calls end, which use it again: the LRU list of a full instance would be walked to
        its end each time."""
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
        """Evict its end, as far as room is needed."""
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
        """It is not there any more."""
        del run.held[instance_id]
        run.in_use.pop(instance_id, None)
        self.runs.has_changed(run, instance_id)
        if not run.held:
            self.runs.remove(run)


def _was_evicted(begun: _Begun, cached: int) -> bool:
    """Whether so few tokens of what was expected were found that the rest must be gone. Where even
    those of calls in flight were not, these had not been computed yet, and nothing follows."""
    return _MISSED * begun.in_use <= cached < _MISSED * begun.cached
