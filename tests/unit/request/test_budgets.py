"""What a workflow may use at most."""

import pytest

from kairos.core import (
    Arrived,
    Bounced,
    Budget,
    Cancelled,
    Failed,
    Finished,
    FirstToken,
    InvalidRequest,
    Progressed,
    Refuse,
    Tick,
    WorkflowEnded,
)
from kairos.core.errors import BudgetExceeded
from kairos.core.model import least
from kairos.request import MAX_BUDGET, budget_of
from tests.support.simulate import build


def balancer(*, seqs=9, instances="a", **budget):
    fleet = [build.instance(name, seqs=seqs) for name in instances]
    return build.balancer(*fleet, budget=Budget(**budget))


def arrive(made, name, at=0, **fields):
    fields.setdefault("workflow_id", "w")
    return made.handle(Arrived(build.request(name, at=at, **fields)), at)


def refused(made, name, what, at=0, **fields):
    with pytest.raises(BudgetExceeded) as error:
        arrive(made, name, at, **fields)
    assert error.value.code == f"budget_{what}"
    return str(error.value)


class TestCalls:
    def test_no_more_are_let_in_than_it_allows(self):
        made = balancer(calls=2)
        arrive(made, "one")
        arrive(made, "two")
        assert "has made 2 calls, of 2" in refused(made, "three", "calls")
        made.handle(Finished("one"), 1)
        refused(made, "three", "calls", at=1)
        assert made.waiting == 0
        assert len(made.ledger) == 1

    def test_one_that_ends_before_it_ran_does_not_count(self):
        made = balancer(calls=2, seqs=1)
        arrive(made, "runs")
        arrive(made, "waits")
        made.handle(Cancelled("waits"), 1)
        arrive(made, "again", at=1)
        refused(made, "more", "calls", at=1)

    def test_one_that_came_to_nothing_on_one_instance_counts_once(self):
        made = balancer(calls=2, instances="ab")
        arrive(made, "one")
        made.handle(Bounced("one", "why", about_itself=True), 1)
        made.handle(Finished("one"), 2)
        arrive(made, "two", at=2)
        refused(made, "three", "calls", at=2)

    def test_with_its_end_the_count_ends(self):
        made = balancer(calls=1)
        arrive(made, "one")
        made.handle(WorkflowEnded("default", "w"), 1)
        arrive(made, "anew", at=1)
        made.handle(Finished("one"), 2)  # of the first: says nothing of the second
        refused(made, "more", "calls", at=2)


class TestTokens:
    def test_what_engines_counted_counts(self):
        made = balancer(tokens=100)
        arrive(made, "one", prompt=10)
        made.handle(Finished("one", prompt_tokens=30, completion_tokens=40), 1)
        said = refused(made, "two", "tokens", at=1, least_prompt_tokens=31)
        assert "has used 70 tokens, of 100, and this prompt has 31" in said
        arrive(made, "three", at=1, prompt=30)

    def test_prompts_in_flight_count(self):
        made = balancer(tokens=100)
        arrive(made, "one", prompt=60)
        refused(made, "two", "tokens", least_prompt_tokens=41)
        arrive(made, "three", prompt=40)

    def test_one_that_does_not_end_well_counts_as_far_as_it_is_known(self):
        made = balancer(tokens=100)
        arrive(made, "one", prompt=10)
        made.handle(FirstToken("one"), 1)
        made.handle(Progressed({"one": 50}), 2)
        made.handle(Failed("one", "why"), 3)
        refused(made, "two", "tokens", at=3, least_prompt_tokens=41)
        arrive(made, "three", at=3, prompt=40)

    def test_an_estimate_alone_refuses_no_call_but_the_next(self):
        made = balancer(tokens=100)
        arrive(made, "one", prompt=60)
        arrive(made, "two", prompt=1000)
        refused(made, "three", "tokens", prompt=1)


class TestTime:
    def test_then_its_calls_end_wherever_they_are(self):
        made = balancer(wall_us=100, seqs=1)
        arrive(made, "runs", at=7)
        arrive(made, "waits", at=50)
        arrive(made, "other", at=60, workflow_id="v")
        assert made.tick_at == 107
        assert made.handle(Tick(), 106) == []
        ended = made.handle(Tick(), 107)
        assert ended[:2] == [Refuse(name, "m", "out_of_time") for name in ("runs", "waits")]
        assert build.placed(ended[2:]) == [("other", "a")]
        assert made.tick_at == 160

    def test_one_that_has_ended_before_is_of_no_concern(self):
        made = balancer(wall_us=100)
        arrive(made, "one")
        made.handle(Finished("one"), 1)
        made.handle(WorkflowEnded("default", "w"), 2)
        assert made.tick_at is None
        arrive(made, "anew", at=50)
        assert made.tick_at == 150


class TestAsked:
    def test_what_one_call_asks_for_holds_for_the_workflow(self):
        made = balancer()
        arrive(made, "one", budget=Budget(calls=2))
        arrive(made, "two")
        refused(made, "three", "calls")

    def test_time_that_is_asked_for_later_counts_from_its_first_call(self):
        made = balancer(wall_us=100)
        arrive(made, "one")
        arrive(made, "two", at=10, budget=Budget(wall_us=50))
        assert made.tick_at == 50
        refused(made, "three", "time", at=40, budget=Budget(wall_us=40))
        assert {each.request_id for each in made.handle(Tick(), 50)} == {"one", "two"}

    def test_a_call_that_is_refused_has_asked_for_nothing(self):
        made = balancer()
        arrive(made, "one")
        refused(made, "two", "calls", budget=Budget(calls=1))
        arrive(made, "three")


def test_of_two_budgets_the_least_of_each_counts():
    assert least(Budget(1, None, 5), Budget(2, 3, None)) == Budget(1, 3, 5)
    assert least(Budget(1), None) == Budget(1)


def test_what_headers_ask_for():
    headers = {"calls": b"3", "tokens": b"5000", "ms": b"250"}
    asked = {b"x-kairos-budget-" + name.encode(): value for name, value in headers.items()}
    assert budget_of(asked) == Budget(3, 5000, 250_000)
    assert budget_of({b"x-kairos-budget-ms": b"1"}) == Budget(wall_us=1_000)
    assert budget_of({}) is None


@pytest.mark.parametrize("name", ["calls", "tokens", "ms"])
@pytest.mark.parametrize("value", [b"0", b"-1", b"1.5", b"", b"many", b"%d" % (MAX_BUDGET + 1)])
def test_what_is_no_budget_is_refused(name, value):
    with pytest.raises(InvalidRequest, match=f"x-kairos-budget-{name} must be a number from 1"):
        budget_of({f"x-kairos-budget-{name}".encode(): value})
