"""Which beginnings of prompts each instance still has in its prefix cache: an approximate index.

Nobody tells what an engine caches, but what was sent there is known, and vLLM evicts what was used
longest ago. So the index of an instance is an LRU list of stretches of prompts, and of answers,
which nobody finds but which take room; together they are as large as the instance's KV memory. A
reply that tells fewer cached tokens than expected corrects it: what was not used since those were
is gone, too. Exact events of the engines' caches could take its place behind the same methods.
Ours.
"""

from collections import OrderedDict
from collections.abc import Mapping
from itertools import count

import msgspec

from kairos.model import PREFIX_MARKS, Instance, Request

_UNKNOWN_KV_TOKENS = 100_000  # of an instance that does not tell how much it holds
_MISSED = 0.5  # of what was expected: fewer tokens than that were found, so the rest was evicted


class _Stretch(msgspec.Struct):
    """From one mark of a prompt to the next."""

    tokens: int
    end: int  # tokens from the prompt's beginning
    used_at: int
    users: int = 0  # calls in flight whose prompts have it


class _Begun(msgspec.Struct, frozen=True):
    """What was expected of a call when it went to its instance."""

    cached: int  # tokens of its prompt
    in_use: int  # of these, by calls in flight, which may not have computed them yet
    used_at: int  # when the stretch of these that was longest unused had been used


class _Cache:
    """What one instance is taken to hold."""

    def __init__(self, instance: Instance) -> None:
        self.size = instance.kv_tokens or _UNKNOWN_KV_TOKENS
        self.stretches: OrderedDict[int, _Stretch] = OrderedDict()  # longest unused first
        self.tokens = 0
        self.shared_tokens = 0  # that calls in flight have in common, all but once
        self.begun: dict[str, _Begun] = {}  # calls in flight, by id


class _Where(msgspec.Struct):
    """Where a stretch is, by id of the instance: where it ends there."""

    version: int  # another one after each change
    held: dict[str, int] = msgspec.field(default_factory=dict)
    in_use: dict[str, int] = msgspec.field(default_factory=dict)  # of these, by calls in flight


class PrefixIndex:
    """By instance. Each method takes O(marks of the prompt), amortised."""

    def __init__(self) -> None:
        self._caches: dict[str, _Cache] = {}
        self._where: dict[int, _Where] = {}  # by hash; of all stretches that an instance holds
        self._versions = count(1)
        self.changes = 0  # the latest of these
        self._answers = count(-1, -1)  # names of stretches that no prompt has

    def join(self, instance: Instance) -> None:
        """Said again, its limits are replaced. Without a prefix cache it holds nothing."""
        if not instance.prefix_caching:
            self.leave(instance.id)
        elif instance.id in self._caches:
            self._caches[instance.id].size = instance.kv_tokens or _UNKNOWN_KV_TOKENS
            self._make_room(instance.id)
        else:
            self._caches[instance.id] = _Cache(instance)

    def leave(self, instance_id: str) -> None:
        cache = self._caches.pop(instance_id, None)
        for name in cache.stretches if cache is not None else ():
            self._drop(name, instance_id)

    def match(self, request: Request) -> Mapping[str, int]:
        """How many tokens of the prompt each instance has that has any, by id."""
        # Something of a prompt is always computed, if only its last token.
        held = [where.held for where in self._last_first(request)]
        return _at_most(request.prompt_tokens - 1, self._longest(held))

    def in_use(self, request: Request) -> Mapping[str, int]:
        """How many tokens of the prompt calls in flight hold already, by id of the instance."""
        # A stretch is as long as the first prompt with it said.
        in_use = [where.in_use for where in self._last_first(request)]
        return _at_most(request.prompt_tokens, self._longest(in_use))

    def versions(self, request: Request) -> list[int]:
        """While these stay the same, so does what `match` and `in_use` say of the request."""
        return [where.version for where in self._last_first(request)]

    def _last_first(self, request: Request) -> list[_Where]:
        """Where the stretches of the prompt are that are anywhere."""
        of = self._where
        return [of[name] for name in reversed(request.prefix) if name in of]

    def _longest(self, ends: list[dict[str, int]]) -> Mapping[str, int]:
        """By instance, the end of the last stretch there."""
        found: dict[str, int] = {}
        for here in ends:
            found = here | found if found else here
            if len(found) == len(self._caches):
                break
        return found

    def shared_tokens(self, instance_id: str) -> int:
        """Of the prompts of calls in flight there: what several have in common, all but once."""
        cache = self._caches.get(instance_id)
        return cache.shared_tokens if cache is not None else 0

    def is_in_use(self, request: Request) -> bool:
        """Whether any call in flight has a prompt that begins alike."""
        first = self._where.get(request.prefix[0]) if request.prefix else None
        return first is not None and bool(first.in_use)

    def begin(self, request: Request, instance_id: str, at: int) -> int:
        """The request goes there now. Returns how many tokens of its prompt were there already."""
        cache = self._caches.get(instance_id)
        if cache is None:
            return 0
        cached, used_at = 0, at
        for name in request.prefix:
            stretch = cache.stretches.get(name)
            if stretch is None:
                break
            cached, used_at = stretch.end, min(used_at, stretch.used_at)
        cached = min(cached, request.prompt_tokens - 1)
        cache.begun[request.id] = _Begun(cached, _in_use(cache, request), used_at)
        self._use(request, instance_id, cache, at, users=1)
        self._make_room(instance_id)
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
        self._use(request, instance_id, cache, at, users=0 if begun is None else -1)
        last = cache.stretches[request.prefix[-1]].end if request.prefix else 0
        rest = max(0, request.prompt_tokens - last) + answer
        if rest:
            cache.stretches[next(self._answers)] = _Stretch(rest, 0, at)
            cache.tokens += rest
        if cached is not None and begun is not None and _was_evicted(begun, cached):
            self._evict_unused_since(instance_id, begun.used_at)
        self._make_room(instance_id)

    def _use(
        self, request: Request, instance_id: str, cache: _Cache, at: int, *, users: int
    ) -> None:
        """Its later stretches are evicted before the earlier ones."""
        scale = request.prompt_tokens / max(1, request.prefix_units)
        before = 0
        for name, mark in zip(request.prefix, PREFIX_MARKS, strict=False):
            stretch = cache.stretches.get(name)
            if stretch is None:
                end = max(before, int(mark * scale))
                stretch = cache.stretches[name] = _Stretch(end - before, end, at)
                cache.tokens += stretch.tokens
                self._changed(name).held[instance_id] = end
            stretch.used_at = at
            once = max(1, stretch.users)
            stretch.users += users
            if stretch.users == users == 1:
                self._changed(name).in_use[instance_id] = stretch.end
            elif users and not stretch.users:
                self._changed(name).in_use.pop(instance_id, None)
            cache.shared_tokens += stretch.tokens * (max(1, stretch.users) - once)
            before = stretch.end
        for name in reversed(request.prefix):
            cache.stretches.move_to_end(name)

    def _make_room(self, instance_id: str) -> None:
        """What calls in flight use stays, whatever its age."""
        cache = self._caches[instance_id]
        for _ in range(len(cache.stretches)):
            if cache.tokens <= cache.size:
                return
            name, stretch = next(iter(cache.stretches.items()))
            if stretch.users:
                cache.stretches.move_to_end(name)
            else:
                self._evict(instance_id, name)

    def _evict_unused_since(self, instance_id: str, at: int) -> None:
        cache = self._caches[instance_id]
        old = [n for n, each in cache.stretches.items() if each.used_at <= at and not each.users]
        for name in old:
            self._evict(instance_id, name)

    def _evict(self, instance_id: str, name: int) -> None:
        cache = self._caches[instance_id]
        cache.tokens -= cache.stretches.pop(name).tokens
        self._drop(name, instance_id)

    def _changed(self, name: int) -> _Where:
        where = self._where.get(name)
        if where is None:
            where = self._where[name] = _Where(0)
        where.version = self.changes = next(self._versions)
        return where

    def _drop(self, name: int, instance_id: str) -> None:
        if name not in self._where:  # of an answer
            return
        where = self._changed(name)
        where.held.pop(instance_id, None)
        where.in_use.pop(instance_id, None)
        if not where.held:
            del self._where[name]


def _at_most(most: int, ends: Mapping[str, int]) -> Mapping[str, int]:
    if not ends or max(ends.values()) <= most:
        return ends
    return {each: min(end, most) for each, end in ends.items()}


def _was_evicted(begun: _Begun, cached: int) -> bool:
    """Whether so few tokens of what was expected were found that the rest must be gone. Where even
    those of calls in flight were not, these had not been computed yet, and nothing follows."""
    return _MISSED * begun.in_use <= cached < _MISSED * begun.cached


def _in_use(cache: _Cache, request: Request) -> int:
    """Tokens of the prompt that calls in flight hold."""
    tokens = 0
    for name in request.prefix:
        stretch = cache.stretches.get(name)
        if stretch is None or not stretch.users:
            break
        tokens += stretch.tokens
    return tokens
