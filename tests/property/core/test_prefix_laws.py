"""The prefix index beside the obvious one: a list of stretches, longest unused first."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kairos.core.dispatcher.prefix_runs import up_from
from kairos.core.dispatcher.prefixes import PrefixIndex
from tests.support.examples import examples
from tests.support.simulate import build

pytestmark = pytest.mark.both

SIZES = {"a": 400, "b": 700, "c": None}
UNKNOWN = 100_000
# Prompts form a tree: each name says all of the path to it, so prompts that begin alike share it.
PATHS = st.tuples(st.integers(1, 3), st.lists(st.integers(0, 1), max_size=5))


def request(name, path, rest):
    family, turns = path
    names, marks = [], [family, *(10 * family + turn for turn in turns)]
    for mark in marks:
        names.append(hash((tuple(names), mark)) & 0xFFFFFFFF)
    tokens = 64 * len(names) + rest
    return build.request(name, prompt=tokens, prefix=tuple(names), prefix_units=tokens)


def stretches(cache):
    """What it holds, as the slow one has it, longest unused first."""
    found = []
    in_use = {
        run.held[cache.id].use: None
        for begun in cache.begun.values()
        for run in up_from(begun.last)
    }
    for use in [*(use for use in in_use if use not in cache.uses), *cache.uses]:
        run = use.last
        while run is not None:
            held = run.held.get(cache.id)
            if held is not None and held.use is use:
                ends = [held.start, *held.ends]
                found += [
                    (run.names[n], ends[n + 1] - ends[n], ends[n + 1], use.at, held.users)
                    for n in reversed(range(len(held.ends)))
                ]
            run = run.before
        if use.answer:
            found.append((None, use.answer, 0, use.at, 0))
    return found


def runs(index):
    """All of the tree."""
    found = [*index.runs.first.values()]
    for run in found:
        found += run.behind.values()
    return found


class Slow:
    """What an instance holds: [name, tokens, end, used at, users], longest unused first."""

    def __init__(self, size):
        self.size, self.held, self.begun = size, [], {}

    def of(self, name):
        return next((each for each in self.held if each[0] == name), None)

    def match(self, request):
        there = [each for name in request.prefix if (each := self.of(name))]
        return min(there[-1][2], request.prompt_tokens - 1) if there else 0

    def in_use(self, request):
        there = [self.of(name) for name in request.prefix]
        return sum(each[1] for each in there if each and each[4])

    def shared(self):
        return sum(each[1] * (each[4] - 1) for each in self.held if each[4] > 1)

    def use(self, request, at, users):
        for n, name in enumerate(request.prefix):
            each = self.of(name)
            if each is None:
                self.held.append(each := [name, 64, 64 * (n + 1), at, 0])
            each[3] = at
            each[4] += users
        for name in reversed(request.prefix):
            each = self.of(name)
            self.held.remove(each)
            self.held.append(each)

    def make_room(self):
        for each in [*self.held]:
            if sum(other[1] for other in self.held) <= self.size:
                return
            if not each[4]:
                self.held.remove(each)

    def begin(self, request, at):
        there = [each for name in request.prefix if (each := self.of(name))]
        expected, in_use = self.match(request), self.in_use(request)
        oldest = min([at, *(each[3] for each in there)])
        self.begun[request.id] = expected, in_use, oldest
        self.use(request, at, 1)
        self.make_room()
        return expected

    def end(self, request, answer, cached, at):
        begun = self.begun.pop(request.id, None)
        self.use(request, at, -1 if begun else 0)
        rest = request.prompt_tokens - 64 * len(request.prefix) + answer
        if rest:
            self.held.append([None, rest, 0, at, 0])
        if begun and cached is not None:
            expected, in_use, oldest = begun
            if in_use / 2 <= cached < expected / 2:
                self.held = [each for each in self.held if each[3] > oldest or each[4]]
        self.make_room()


class PrefixMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.index, self.slow, self.flying, self.at, self.n = PrefixIndex(), {}, {}, 0, 0
        self.said = {}  # of a prompt, when it was asked last
        for name, size in SIZES.items():
            self.join(name, size, caching=True)

    @rule(
        name=st.sampled_from([*SIZES]),
        size=st.sampled_from([100, 400, 1500, None]),
        caching=st.sampled_from([True, True, True, False]),
    )
    def join(self, name, size, caching):
        self.index.add_instance(build.instance(name, kv=size, prefix_caching=caching))
        if not caching:
            self.slow.pop(name, None)
        elif name in self.slow:
            self.slow[name].size = size or UNKNOWN
            self.slow[name].make_room()
        else:
            self.slow[name] = Slow(size or UNKNOWN)

    @rule(name=st.sampled_from([*SIZES, "nobody"]))
    def leave(self, name):
        self.index.remove_instance(name)
        self.slow.pop(name, None)

    @rule(
        where=st.sampled_from([*SIZES]), path=PATHS, rest=st.integers(0, 63), us=st.integers(0, 2)
    )
    def begin(self, where, path, rest, us):
        self.at += us
        self.n += 1
        one = request(f"r{self.n}", path, rest)
        expected = self.slow[where].begin(one, self.at) if where in self.slow else 0
        assert self.index.begin_use(one, where, self.at) == expected < one.prompt_tokens
        self.flying[one.id] = one, where

    @precondition(lambda self: self.flying)
    @rule(
        data=st.data(),
        answer=st.integers(0, 300),
        cached=st.none() | st.integers(0, 400),
        us=st.integers(0, 2),
    )
    def end(self, data, answer, cached, us):
        self.at += us
        one, where = self.flying.pop(data.draw(st.sampled_from(sorted(self.flying))))
        self.index.end_use(one, where, answer, cached, self.at)
        if where in self.slow:
            self.slow[where].end(one, answer, cached, self.at)

    @rule(path=PATHS, rest=st.integers(0, 63))
    def ask(self, path, rest):
        one = request("asked", path, rest)
        expected = {name: slow.match(one) for name, slow in self.slow.items()}
        assert self.index.match(one) == {name: n for name, n in expected.items() if n}
        in_use = {name: slow.in_use(one) for name, slow in self.slow.items()}
        assert self.index.in_use(one) == {name: n for name, n in in_use.items() if n}
        assert self.index.is_in_use(one) == any(in_use.values())
        said = {name: (in_use.get(name, 0), slow.match(one)) for name, slow in self.slow.items()}
        assert {name: self.index.of_one(one, name) for name in said} == said
        self.nothing_else_has_changed(one, said)

    def nothing_else_has_changed(self, one, said):
        """Since it was asked last, but of instances that are said to have changed: and only if the
        beginning has."""
        index = self.index
        asked = one.prefix, one.prompt_tokens
        if asked in self.said:
            before, left, changes, beginning = self.said[asked]
            changed = set(index.runs.changed_since(changes))
            if beginning == index.runs.beginning(one.prefix):
                changed.clear()
            for name in said if left == index.left else ():
                assert name in changed or said[name] == before.get(name, (0, 0))
        self.said[asked] = said, index.left, index.runs.changes, index.runs.beginning(one.prefix)

    @invariant()
    def both_hold_the_same_in_the_same_order(self):
        assert set(self.index._caches) == set(self.slow)
        for name, slow in self.slow.items():
            cache = self.index._caches[name]
            assert [each for each in stretches(cache) if not each[4]] == [
                tuple(each) for each in slow.held if not each[4]
            ]
            assert cache.shared_tokens == slow.shared() == self.index.shared_tokens(name)
            assert set(cache.begun) == set(slow.begun)

    @invariant()
    def it_is_no_larger_than_the_instance_but_for_what_is_in_use(self):
        for cache in self.index._caches.values():
            assert cache.tokens == sum(each[1] for each in stretches(cache))
            idle = sum(each[1] for each in stretches(cache) if not each[4])
            assert cache.tokens <= cache.size or idle == 0

    @invariant()
    def where_a_mark_is_held_so_are_those_before_it(self):
        for n in range(1, 4):
            for turns in ((0,) * 5, (1,) * 5, (0, 1, 0, 1, 0), (1, 1, 0, 0, 1)):
                path = request("any", (n, list(turns)), 0).prefix
                for cache in self.index._caches.values():
                    names = {each[0] for each in stretches(cache)}
                    held = [name in names for name in path]
                    assert held == sorted(held, reverse=True)

    @invariant()
    def those_who_hold_are_known_and_nobody_else(self):
        held, in_use = set(), set()
        for each, cache in self.index._caches.items():
            for name, _, _, _, users in stretches(cache):
                held |= {(name, each)} if name is not None else set()
                in_use |= {(name, each)} if users else set()
        tree = runs(self.index)
        assert held == {
            (name, each)
            for run in tree
            for each in run.held
            for name in run.names[: self.has(run, each)]
        }
        assert in_use == {(name, each) for run in tree for each in run.in_use for name in run.names}
        assert all(run.held for run in tree)

    def has(self, run, instance):
        return len(run.held[instance].ends)

    @invariant()
    def nothing_is_kept_of_uses_of_which_nothing_is_left(self):
        for cache in self.index._caches.values():
            named = {id(run.held[cache.id].use) for run in runs(self.index) if cache.id in run.held}
            assert all(id(use) in named or use.answer for use in cache.uses)

    def teardown(self):
        for one, where in getattr(self, "flying", {}).values():
            self.index.end_use(one, where, 0, None, self.at)
        for cache in getattr(self, "index", PrefixIndex())._caches.values():
            assert cache.shared_tokens == 0
            assert not cache.begun
            assert not any(each[4] for each in stretches(cache))


TestPrefixIndex = PrefixMachine.TestCase
TestPrefixIndex.settings = examples(120, steps=60, gate=60)
