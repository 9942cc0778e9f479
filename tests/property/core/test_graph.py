"""Any workflow of sequential and parallel calls, laid out in time, is recovered from its spans."""

from itertools import count, pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import CallGraph, Remaining, remaining_work
from kairos.core.orchestrator.joins import Ancestry
from kairos.core.orchestrator.parents import NAMESAKES
from kairos.core.orchestrator.remaining import remaining_of_chain
from kairos.core.orchestrator.spans import Span, parallel_groups

UNIT = 100  # of time; clocks disagree by less


class Call:
    """A call as it truly was: its stages are sets of parallel branches."""

    def __init__(self, name, draw, at, depth):
        self.name, self.caller, self.stages = next(name), None, []
        self.started_at = at
        self.finished_at = self.ended_at = at + draw(st.integers(1, 5)) * UNIT
        for _ in range(draw(st.integers(0, 2)) if depth else 0):
            self.stages.append(self.stage(name, draw, depth))

    def stage(self, name, draw, depth):
        busy_until = at = self.ended_at + draw(st.integers(0, 3)) * UNIT
        branches = []
        for _ in range(draw(st.integers(1, 3))):
            branch = Call(name, draw, at, depth - 1)
            branch.caller = self.name
            branches.append(branch)
            busy_until = max(busy_until, branch.ended_at)
            at = draw(st.integers(at // UNIT, busy_until // UNIT - 1)) * UNIT  # it will overlap
        self.ended_at = busy_until
        return branches

    def calls(self):
        yield self
        for branch in self.branches():
            yield from branch.calls()

    def branches(self):
        return [branch for stage in self.stages for branch in stage]


@st.composite
def workflows(draw):
    """A call with all that followed, and a few that the user made besides, one after another."""
    name, at, roots = (f"r{n}" for n in count()), 0, []
    for _ in range(draw(st.integers(1, 2))):
        roots.append(Call(name, draw, at, depth=3))
        at = roots[-1].ended_at + draw(st.integers(0, 3)) * UNIT
    return roots


def all_calls(roots):
    return [call for root in roots for call in root.calls()]


def truth(roots):
    """The stages under each call, each as a set."""
    stages = {call.name: call.stages for call in all_calls(roots)} | {None: [[r] for r in roots]}
    return {name: [{x.name for x in stage} for stage in under] for name, under in stages.items()}


def recovered(graph):
    return {call: [set(stage) for stage in graph.stages(call)] for call in [None, *graph.nodes]}


def told(call):
    """All calls are of one agent, so names would say nothing."""
    led_by = {"upstream": "agent", "parent_ids": (call.caller,)} if call.caller else {}
    times = {"started_at": call.started_at, "finished_at": call.finished_at}
    return Span(id=call.name, agent="agent", **led_by, **times)


def named(call):
    """Every call is of an agent of its own."""
    times = {"started_at": call.started_at, "finished_at": call.finished_at}
    return Span(id=call.name, agent=call.name, upstream=call.caller, **times)


def graph_of(spans, skew_us=0):
    graph = CallGraph(skew_us=skew_us)
    for span in spans:
        graph.add(span)
    return graph


@given(workflows(), st.data())
def test_ids_of_parents_recover_every_workflow_in_any_order_of_arrival(roots, data):
    spans = []
    attempts = {}
    for call in all_calls(roots):
        last = told(call)
        attempts[call.name] = data.draw(st.integers(1, 3))
        spans += [
            msgspec.structs.replace(
                last,
                attempt=n,
                started_at=last.started_at - (attempts[call.name] - n) * 10,
                finished_at=last.finished_at - (attempts[call.name] - n) * 10,
            )
            for n in range(1, attempts[call.name] + 1)
        ]
    twice = data.draw(st.lists(st.sampled_from(spans), max_size=5))
    graph = graph_of(data.draw(st.permutations(spans + twice)))

    assert recovered(graph) == truth(roots)
    for call in all_calls(roots):
        node = graph.nodes[call.name]
        assert (node.caller, node.attempts) == (call.caller, attempts[call.name])
        assert node.branch_finished_at == call.ended_at
        assert not node.ambiguous
        assert not node.missing


@given(workflows(), st.randoms(use_true_random=False))
def test_names_alone_recover_every_workflow_without_joins(roots, random):
    by_name = {call.name: call for call in all_calls(roots)}
    spans = [named(call) for call in by_name.values()]
    random.shuffle(spans)
    graph = graph_of(spans)

    assert recovered(graph) == truth(roots)
    for call in by_name.values():
        node = graph.nodes[call.name]
        assert node.named == node.caller == call.caller
        assert not node.missing
        if node.ambiguous:
            assert may_be_a_join(call, by_name, roots)


def may_be_a_join(call, by_name, roots):
    """Return whether it began after the end of other branches of its caller's, or of one above."""
    caller = by_name[call.caller] if call.caller else None
    while caller is not None:
        above = by_name[caller.caller].stages if caller.caller else [[root] for root in roots]
        beside = next(stage for stage in above if caller in stage)
        if any(each.finished_at <= call.started_at for each in beside if each is not caller):
            return True
        caller = by_name[caller.caller] if caller.caller else None
    return False


@given(workflows(), st.integers(0, UNIT // 2 - 1), st.data())
def test_clocks_that_disagree_by_the_skew_change_nothing(roots, skew_us, data):
    """All overlaps are longer than twice the skew; gaps may be none."""
    shift = {call.name: data.draw(st.integers(0, skew_us)) for call in all_calls(roots)}

    def read(span):
        at = shift[span.id]
        return msgspec.structs.replace(
            span, started_at=span.started_at + at, finished_at=span.finished_at + at
        )

    calls = all_calls(roots)
    assert recovered(graph_of([read(told(call)) for call in calls], skew_us)) == truth(roots)
    by_name = graph_of([read(named(call)) for call in calls], skew_us)
    assert {call: node.named for call, node in by_name.nodes.items()} == {
        call.name: call.caller for call in calls
    }


@given(workflows(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_never_matters(roots, random):
    """Not even to guesses: four agents share all the calls."""
    spans = [
        msgspec.structs.replace(named(call), agent=f"a{n % 4}", upstream=f"a{n * 7 % 5}")
        for n, call in enumerate(all_calls(roots))
    ]
    in_order = graph_of(spans)
    random.shuffle(spans)
    shuffled = graph_of(spans)

    assert dict(shuffled.nodes) == dict(in_order.nodes)
    assert recovered(shuffled) == recovered(in_order)


@given(workflows(), st.data())
def test_what_remains_is_the_longest_path_through_the_workflow(roots, data):
    calls = all_calls(roots)
    lost = set(data.draw(st.lists(st.sampled_from([call.name for call in calls]), max_size=2)))
    spans = [
        msgspec.structs.replace(told(call), outcome="failed" if call.name in lost else "finished")
        for call in calls
    ]
    expected = {}
    slow_remaining([[root] for root in roots], (0, 0, 0, False), 0, lost, expected)

    assert remaining_work(graph_of(spans)) == expected


def slow_remaining(stages, after, ready_at, lost, found):
    """The longest path (work, calls, gap, censored) from the first of `stages` on, with `after`
    behind the last of them; `found` takes what remains from every call in them."""
    if not stages:
        return after
    ended_at = max(branch.ended_at for branch in stages[0])
    rest = slow_remaining(stages[1:], after, ended_at, lost, found)
    paths = []
    for call in stages[0]:
        work, number, gap, censored = slow_remaining(
            call.stages, rest, call.finished_at, lost, found
        )
        work, number = work + call.finished_at - call.started_at, number + 1
        censored = censored or call.name in lost
        found[call.name] = Remaining(work_us=work, stages=number, gap_us=gap, censored=censored)
        paths.append((work, number, gap + call.started_at - ready_at, censored))
    return (*max(path[:3] for path in paths), any(path[3] for path in paths))


@st.composite
def calls_with_joins(draw):
    """Spans that begin after the answers of up to three calls before them."""
    spans = []
    for n in range(draw(st.integers(1, 14))):
        parents = draw(st.lists(st.sampled_from(spans), max_size=3)) if spans else []
        at = max([parent.finished_at for parent in parents], default=0) + draw(st.integers(0, 4))
        ids = tuple(parent.id for parent in parents)
        end = at + draw(st.integers(1, 9))
        spans.append(Span(id=f"r{n}", agent="a", parent_ids=ids, started_at=at, finished_at=end))
    return spans


@given(calls_with_joins())
def test_what_remains_is_the_longest_path_with_any_joins(spans):
    graph = graph_of(spans)
    after = {call: set(graph.children(call)) for call in graph.nodes}
    for caller in [None, *graph.nodes]:
        stages = graph.stages(caller)
        for stage, following in pairwise(stages):
            for call in stage:
                for below in branch(graph, call):
                    after[below].update(following)
    for call, node in graph.nodes.items():
        for parent in node.parents:
            after[parent].add(call)

    def longest(call):
        work, number = max(map(longest, after[call]), default=(0, 0))
        return work + graph.nodes[call].span.execution_us, number + 1

    found = remaining_work(graph)
    assert {call: (left.work_us, left.stages) for call, left in found.items()} == {
        call: longest(call) for call in graph.nodes
    }


def branch(graph, call):
    """The call and all that sits under it."""
    return [call, *(below for child in graph.children(call) for below in branch(graph, child))]


NONSENSE = st.builds(
    Span,
    id=st.sampled_from("abcdef"),
    agent=st.sampled_from("xyz"),
    upstream=st.sampled_from(["x", "y", "w", "user", None]),
    parent_ids=st.lists(st.sampled_from("abcdefg"), max_size=3).map(tuple),
    attempt=st.integers(1, 2),
    started_at=st.integers(0, 9),
    finished_at=st.integers(0, 12),
    outcome=st.sampled_from(["finished", "failed", "cancelled"]),
)


@given(st.lists(NONSENSE, max_size=8), st.integers(0, 3))
def test_whatever_clients_say_every_call_has_one_place_and_something_remains(spans, skew_us):
    graph = graph_of(spans, skew_us)
    below = [call for stage in graph.stages(None) for call in stage]
    reached = [reached for call in below for reached in branch(graph, call)]
    found = remaining_work(graph)

    assert sorted(reached) == sorted(graph.nodes) == sorted({span.id for span in spans})
    assert found.keys() == graph.nodes.keys()
    for call, node in graph.nodes.items():
        assert sorted(graph.children(call)) == sorted(c for s in graph.stages(call) for c in s)
        under = [found[child].work_us for child in graph.children(call)]
        assert found[call].work_us >= node.span.execution_us + max(under, default=0)
        assert found[call].gap_us >= 0


INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=12)


@given(INTERVALS)
def test_groups_are_the_connected_parts_of_overlap(intervals):
    spans = [
        Span(id=str(n), agent="a", started_at=begin, finished_at=begin + length)
        for n, (begin, length) in enumerate(intervals)
    ]
    groups = parallel_groups(spans)

    assert sorted(span.id for group in groups for span in group) == sorted(s.id for s in spans)
    group_of = {span.id: n for n, group in enumerate(groups) for span in group}
    for one in spans:
        for other in spans:
            if group_of[one.id] < group_of[other.id]:
                assert one.finished_at <= other.started_at
    for group in groups:
        reached, to_do = {group[0].id}, [group[0]]
        while to_do:
            one = to_do.pop()
            for other in group:
                if other.id not in reached and overlap(one, other):
                    reached.add(other.id)
                    to_do.append(other)
        assert len(reached) == len(group)


def overlap(one, other):
    return one.started_at < other.finished_at and other.started_at < one.finished_at


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60), st.data())
def test_calls_meet_at_the_nearest_call_above_those_that_no_other_follows(seeds, data):
    tree, above = Ancestry(), {None: [None]}
    for n, seed in enumerate(seeds):
        # Mostly chains, so that there is something to climb.
        caller = n - 1 if n and seed % 3 else seed // 3 % (n + 1) - 1
        caller = str(caller) if caller >= 0 else None
        tree.add(str(n), caller)
        above[str(n)] = [str(n), *above[caller]]
    calls = data.draw(st.lists(st.sampled_from(sorted(above.keys() - {None})), max_size=4))
    last = [c for c in calls if not any(c in above[other][1:] for other in calls)]
    common = set(above[None]).union(*above.values()).intersection(*(above[c] for c in last))

    deepest = max(common, key=lambda call: len(above[call])) if last else None
    assert tree.meeting(tuple(calls)) == deepest
    for call in calls:
        for upper in [None, *calls]:
            assert tree.is_above(upper, call) == (upper in above[call])


def test_only_the_latest_namesakes_are_looked_at():
    """More rivals than that change nothing but the doubt, which is there already."""
    spans = [
        Span(id=f"b{n}", agent="b", started_at=n, finished_at=100 + n) for n in range(NAMESAKES + 5)
    ]
    spans.append(Span(id="c", agent="c", upstream="b", started_at=111, finished_at=120))
    node = graph_of(spans).nodes["c"]

    assert node.named == "b11"
    assert node.ambiguous


@st.composite
def told_calls(draw):
    """Calls of which each tells of the one before, or, some, of another or of none."""
    made = []
    for number in range(draw(st.integers(1, 6))):
        before = [each.id for each in made]
        usual = tuple(before[-1:])
        others = st.lists(st.sampled_from([*before, "unknown"]), max_size=2).map(tuple)
        started_at = draw(st.integers(0, 50)) * UNIT
        made.append(
            Span(
                id=f"c{number}",
                agent=draw(st.sampled_from("ab")),
                upstream=draw(st.sampled_from([None, "user", "a", "b"])),
                parent_ids=usual if draw(st.integers(0, 9)) else draw(others),
                started_at=started_at,
                finished_at=started_at + draw(st.integers(-1, 9)) * UNIT,
                queued_us=draw(st.integers(0, 3)) * UNIT,
                outcome=draw(st.sampled_from(["finished"] * 5 + ["failed", "cancelled"])),
            )
        )
    return made


@given(spans=told_calls(), skew=st.sampled_from([0, UNIT]))
def test_what_remains_of_a_chain_is_the_same_without_a_graph(spans, skew):
    graph = CallGraph(skew_us=skew)
    for span in spans:
        graph.add(span)

    found = remaining_of_chain(spans)

    is_chain = (
        all(after.parent_ids == (before.id,) for before, after in pairwise(spans))
        and not spans[0].parent_ids
    )
    assert (found is not None) == is_chain
    if found is not None:
        assert found == remaining_work(graph)
