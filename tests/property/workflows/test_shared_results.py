"""Drawn invocations that share results, against what each would be given alone."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kairos.workflows.execute.commands import DropCall, FetchCached, KeepResult
from kairos.workflows.execute.facts import CallAnswered, CallBroke
from kairos.workflows.serve import shared_results
from kairos.workflows.serve.shared_results import InvocationSharing, SharedResults

# An invocation wants results, one after the other or at once; a call of it ends well, fails, is
# tried again or is not wanted any more; or its client leaves.
STEP = st.tuples(
    st.sampled_from(["want", "want", "answer", "answer", "retry", "fail", "drop", "leave", "wait"]),
    st.integers(0, 5),  # of which invocation
    st.integers(0, 3),  # of which signature, or of which call under way
)
KEEP_S = 10.0


class Invocation:
    def __init__(self, shared, number):
        self.tenant, self.seconds = f"t{number % 2}", f"c{number % 3 % 2}"
        of = self.tenant, None, self.seconds
        self.sharing = InvocationSharing(shared, of, self.told, "heard" if number == 5 else None)
        self.wanted, self.made, self.given, self.calls = {}, {}, {}, 0

    def want(self, signature):
        self.calls += 1
        self.wanted[self.calls] = signature
        self.sharing.fetch(FetchCached(self.calls, signature, "heard"))

    def told(self, fact):
        signature = self.wanted.pop(fact.call)
        if fact.hit:
            self.given[fact.call] = signature, fact.value
        else:
            self.made[fact.call] = signature

    def end(self, call, kind):
        signature = self.made[call]
        if kind != "retry":
            del self.made[call]
        commands, fact = [], CallBroke(call, "no", retry=True)
        if kind == "answer":
            value = [self.tenant, signature]
            fact = CallAnswered(call, value)
            self.given[call] = signature, value
            commands = [
                KeepResult(
                    stage=0,
                    node="n",
                    row=0,
                    signature=signature,
                    value=value,
                    origin="called",
                    store=True,
                )
            ]
        elif kind == "drop":
            fact, commands = None, [DropCall(call)]
        self.sharing.handled(fact, commands, self.made.__contains__)


@given(st.lists(STEP, max_size=60))
def test_each_is_given_what_it_would_have_made_and_nobody_waits_in_vain(steps):
    now = [0.0]
    shared = SharedResults(KEEP_S, lambda: now[0])
    invocations = [Invocation(shared, number) for number in range(6)]
    left = set()
    for kind, number, which in steps:
        each = invocations[number]
        if kind == "wait":
            now[0] += KEEP_S / 2
        elif number in left:
            continue
        elif kind == "want":
            each.want(f"s{which}")
        elif kind == "leave":
            left.add(number)
            each.sharing.leave()
            each.wanted.clear()
        elif each.made:
            each.end(sorted(each.made)[which % len(each.made)], kind)
        waiting = {
            (one.tenant, one.seconds, signature)
            for at, one in enumerate(invocations)
            if at not in left
            for signature in one.wanted.values()
        }
        under_way = {
            (one.tenant, one.seconds, signature)
            for at, one in enumerate(invocations)
            if at not in left
            for signature in one.made.values()
        }
        assert waiting <= under_way  # what somebody waits for is made
    for at, each in enumerate(invocations):
        for signature, value in each.given.values():
            assert value == [each.tenant, signature]
        if at not in left:
            each.sharing.leave()
    assert shared.under_way == 0


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_of_equal_calls_at_once_one_is_made(signatures):
    shared = SharedResults(KEEP_S, lambda: 0.0)
    invocations = [Invocation(shared, 0) for _ in signatures]
    for each, signature in zip(invocations, signatures, strict=True):
        each.want(f"s{signature}")
    made = Counter(signature for each in invocations for signature in each.made.values())
    assert made == Counter({f"s{each}": 1 for each in signatures})
    for each in invocations:
        for call in [*each.made]:
            each.end(call, "answer")
    assert all(each.given for each in invocations)


def test_what_is_kept_is_bounded_in_bytes_and_in_time(monkeypatch):
    monkeypatch.setattr(shared_results, "MOST_BYTES", 3_000)
    now = [0.0]
    shared = SharedResults(KEEP_S, lambda: now[0])

    def is_kept(signature):
        one = Invocation(shared, 0)
        one.want(signature)
        kept = not one.made
        for call in [*one.made]:
            one.end(call, "answer")
        return kept

    assert [is_kept(f"s{n}") for n in range(8)] == [False] * 8
    assert is_kept("s7")
    assert not is_kept("s0")  # what came later has its place
    now[0] = KEEP_S
    assert not is_kept("s7")
