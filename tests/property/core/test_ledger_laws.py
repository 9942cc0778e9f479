"""The ledger beside a plain dict of what was told: nothing held is lost, and nothing is left of
what was released, in whatever order facts come."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from kairos.core import (
    SECOND,
    BySurvival,
    Finished,
    InstanceStatus,
    Ledger,
    exponential_distribution,
)
from kairos.core.dispatcher.demand import SLOT_US
from kairos.core.dispatcher.ledger import _PATIENCE
from kairos.core.dispatcher.occupancy import FEW, RENEWED_US, Occupancy, by_modes
from tests.property.core.test_prefix_laws import PATHS, request
from tests.support.examples import examples
from tests.support.simulate import build

pytestmark = pytest.mark.both

# Of unequal kinds, so that what is learnt on one says nothing of another.
FLEET = {
    "a": build.instance("a", seqs=3, kv=2_000),
    "b": build.instance("b", seqs=9, kv=500, token_us=10_000.0),
    "c": build.instance("c", seqs=2, prefix_caching=False, block_size=16),
}
KNOWN = build.Lengths(
    tokens={"x": exponential_distribution(50.0), "y": exponential_distribution(4_000.0)},
    latency_us={"x": exponential_distribution(2.0 * SECOND)},
)


class Call:
    """What was told of a call in flight."""

    def __init__(self, request, where, at, prefill_us):
        self.request, self.where, self.at = request, where, at
        self.tokens, self.since = 0, at + int(_PATIENCE * prefill_us)
        self.first_token_told = self.counts_as_user = False

    def generated(self, at, token_us):
        limit = self.request.completion_limit
        grown = self.tokens + max(0, at - self.since) / token_us
        return max(self.tokens, grown if limit is None else min(grown, limit))


class LedgerMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.ledger, self.at, self.n = Ledger(KNOWN), 0, 0
        self.here, self.calls = set(), {}
        self.by_modes = Occupancy(self.ledger, by_modes)
        self.derives = BySurvival()
        self.by_survival = Occupancy(self.ledger, self.derives)
        for name in FLEET:
            self.join(name)

    @rule(name=st.sampled_from([*FLEET]), times_as_large=st.sampled_from([1, 1, 2]))
    def join(self, name, times_as_large=1):
        kv_tokens = FLEET[name].kv_tokens and FLEET[name].kv_tokens * times_as_large
        self.ledger.add_instance(replace(FLEET[name], kv_tokens=kv_tokens))
        self.here.add(name)

    @rule(name=st.sampled_from([*FLEET, "nobody"]))
    def leave(self, name):
        self.ledger.remove_instance(name)
        self.here.discard(name)
        for call in self.calls.values():
            if call.where == name:
                call.counts_as_user = False

    @rule(us=st.sampled_from([0, 1, 1_000, SLOT_US - 1, SLOT_US, 4 * SECOND]))
    def time_passes(self, us):
        self.at += us

    @rule(
        where=st.sampled_from([*FLEET, "later"]),
        path=PATHS,
        rest=st.integers(0, 63),
        agent=st.sampled_from(["x", "y", "unknown"]),
        limit=st.sampled_from([None, None, 1, 100]),
        sequences=st.sampled_from([1, 1, 1, 2, 20]),
    )
    def book(self, where, path, rest, agent, limit, sequences):
        self.n += 1
        fields = {"agent": agent, "completion_limit": limit, "completion_tokens": 64}
        fields["sequences"] = sequences
        one = request(f"r{self.n}", path, rest)
        one = replace(one, **fields)
        prefill_us = 0
        if where in self.ledger.served.speeds:
            cached = self.ledger.prefixes.match(one).get(where, 0)
            prefill_us = self.ledger.served.speeds[where].prefill_us(one.prompt_tokens - cached)
        self.ledger.book(one, where, self.at)
        call = self.calls[one.id] = Call(one, where, self.at, prefill_us)
        call.counts_as_user = where in self.here and where != "c"

    def one_of(self, data):
        return data.draw(st.sampled_from(sorted(self.calls)))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def first_token(self, data):
        name = self.one_of(data)
        self.ledger.record_first_token(name, self.at)
        call = self.calls[name]
        if not call.first_token_told:
            call.first_token_told = True
            call.tokens, call.since = max(1, call.tokens), self.at

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), tokens=st.integers(0, 300))
    def progress(self, data, tokens):
        name = self.one_of(data)
        self.ledger.record_progress({name: tokens, "stranger": 5}, self.at)
        call = self.calls[name]
        if tokens >= call.tokens:
            call.tokens, call.since = tokens, self.at

    @rule(
        name=st.sampled_from([*FLEET, "later", "nobody"]),
        used=st.none() | st.floats(0, 1),
        preemptions=st.none() | st.integers(0, 3),
    )
    def status(self, name, used, preemptions):
        self.ledger.record_status(
            InstanceStatus(name, kv_used=used, preemptions=preemptions), self.at
        )

    @precondition(lambda self: self.calls)
    @rule(
        data=st.data(),
        how=st.sampled_from(["finished", "finished, told nothing", "failed or cancelled"]),
        answer=st.integers(0, 300),
        cached=st.none() | st.integers(0, 300),
    )
    def release(self, data, how, answer, cached):
        name = self.one_of(data)
        finished = {
            "finished": Finished(name, 70, answer, cached),
            "finished, told nothing": Finished(name),
            "failed or cancelled": None,
        }[how]
        del self.calls[name]
        self.ledger.release_booking(name, self.at, finished)
        self.ledger.release_booking(name, self.at, finished)  # told again

    @rule()
    def late_news(self):
        self.ledger.record_first_token("gone", self.at)
        self.ledger.record_progress({"gone": 7}, self.at)
        self.ledger.release_booking("gone", self.at, Finished("gone", 5, 5, 5))

    def of(self, where):
        return [call for call in self.calls.values() if call.where == where]

    def shared(self, where):
        """What the prompts there have in common, all but once: each mark is 64 tokens."""
        users = [n for call in self.of(where) if call.counts_as_user for n in call.request.prefix]
        return 64 * (len(users) - len(set(users)))

    @invariant()
    def every_call_is_where_it_was_booked_and_nowhere_else(self):
        assert len(self.ledger) == len(self.calls)
        for name, call in self.calls.items():
            assert name in self.ledger
            assert self.ledger.instance_of(name) == call.where
            booking = self.ledger.booking(name)
            assert (booking.generated, booking.at) == (call.tokens, call.at)
        for where in (*FLEET, "later", "nobody"):
            assert self.ledger.running(where) == sum(
                each.request.sequences for each in self.of(where)
            )

    @invariant()
    def what_is_held_is_what_was_told(self):
        for where in self.here | {call.where for call in self.calls.values()}:
            calls = self.of(where)
            token_us = self.ledger.token_us(where)
            prompts = [call.request.prompt_tokens for call in calls]
            held = sum(prompts) + sum(call.generated(self.at, token_us) for call in calls)
            unfilled = (FLEET[where].block_size - 1) / 2 * len(calls) if where in self.here else 0
            assert self.ledger.held_tokens(where, self.at) == pytest.approx(
                held - self.shared(where) + unfilled, abs=1e-6
            )

    @invariant()
    def the_papers_forecast_is_what_follows_from_what_is_known(self):
        instances = self.ledger.served.serving(None)
        means, variances, _ = self.by_modes.of(instances, self.at)
        for row, instance in enumerate(instances):
            derived_at = self.derived_at(self.by_modes, instance)
            assert 0 <= self.at - derived_at < RENEWED_US
            mean, variance, _ = by_modes(self.ledger, instance, derived_at)
            mean = mean + self.grown(self.by_modes, instance)
            assert means[row] == pytest.approx(mean)
            assert (mean >= 0).all()
            assert not variance.any()
            assert not variances.any()

    @invariant()
    def ours_is_too_where_there_are_few_calls(self):
        instances, ledger = self.ledger.served.serving(None), self.ledger
        means, variances, most = self.by_survival.of(instances, self.at)
        for row, instance in enumerate(instances):
            asked_at = self.derived_at(self.by_survival, instance)
            assert 0 <= self.at - asked_at < RENEWED_US
            assert (means[row] >= 0).all()
            assert (variances[row] >= 0).all()
            assert (most[row] >= means[row] - 1e-6).all()
            n = ledger.running(instance.id)
            derived_at = self.derives._derived[instance.id].at if n else asked_at
            assert 0 <= asked_at - derived_at < RENEWED_US
            if n <= FEW:
                anew = BySurvival()
                anew(ledger, instance, derived_at)
                mean, variance, at_most = anew(ledger, instance, asked_at)
                grown = self.grown(self.by_survival, instance)
                assert means[row] == pytest.approx(mean + grown)
                assert (variances[row] == variance).all()
                assert most[row] == pytest.approx(at_most + grown)

    def grown(self, occupancy, instance):
        """Return the tokens since the forecast, had all calls gone on."""
        running = self.ledger.running(instance.id)
        since_us = self.at - self.derived_at(occupancy, instance)
        return running * since_us / self.ledger.token_us(instance.id)

    def derived_at(self, occupancy, instance):
        return int(occupancy._derived_at[occupancy.table.rows([instance])[0]])

    @invariant()
    def the_board_says_what_the_ledger_says(self):
        instances, ledger = self.ledger.served.serving(None), self.ledger
        table = self.by_survival.table
        rows = table.rows(instances)
        running = [ledger.running(each.id) for each in instances]
        assert table.running(rows).tolist() == running
        assert table.suspended(rows, self.at).tolist() == [
            ledger.health.is_suspended(each.id, self.at) for each in instances
        ]
        assert table.capacities(rows, self.at).tolist() == [
            each.kv_tokens - ledger.health.unseen_tokens(each, self.at)
            if n and each.kv_tokens
            else float("inf")
            for each, n in zip(instances, running, strict=True)
        ]
        speeds = [ledger.served.speeds[each.id] for each in instances]
        told = zip(speeds, running, strict=True)
        expected = [(s.token_us(n + 1), s.token_slope_us(n), s.compute_us(700)) for s, n in told]
        columns = (
            table.token_us(rows),
            table.token_slope_us(rows),
            table.compute_us(rows, np.full(len(rows), 700.0)),
        )
        assert np.array(columns).T.tolist() == [pytest.approx(each) for each in expected]

    @invariant()
    def nothing_is_kept_of_those_who_are_gone(self):
        ledger = self.ledger
        where = self.here | {call.where for call in self.calls.values()}
        for kept in (
            ledger._flights,
            ledger.prompts._prompts,
            ledger._versions,
            ledger.served.speeds,
        ):
            assert set(kept) <= where
        assert set(ledger._last_booking) <= where
        for kept in (ledger.instances, ledger.health._told, ledger.prefixes._caches):
            assert set(kept) <= self.here
        assert sum(row.users for row in ledger.curves._rows.values()) == len(self.calls)
        assert set(ledger.curves._of_call) == set(self.calls)

    def teardown(self):
        """However they end: nothing is left."""
        ledger = getattr(self, "ledger", None)
        if ledger is None:
            return
        for name in [*self.calls]:
            ledger.release_booking(name, self.at)
        for instance in ledger.served.serving(None):
            assert ledger.held_tokens(instance.id, self.at + SECOND) == 0
            assert len(ledger.flight(instance.id)) == 0
            assert not ledger.prompts.requests(instance.id)
            assert ledger.takes_more(instance, self.at)
        for cache in ledger.prefixes._caches.values():
            assert cache.shared_tokens == 0
            assert cache.begun == {}
        assert not any(run.in_use for run in ledger.prefixes.runs.first.values())
        assert not any(row.users for row in ledger.curves._rows.values())
        assert ledger.curves._of_call == {}


TestLedger = LedgerMachine.TestCase
TestLedger.settings = examples(120, steps=60)
