"""Joins of branches by the answers that a call's prompt has, where it names one branch alone."""

import json
from random import Random

import pytest

from experiments.drawn_programs import drawn_program, played, truly_remaining, with_carried
from kairos.core import CallGraph, remaining_work
from kairos.request import Identity, Inference
from kairos.request.identity.conversation import prompt_of

PLAN = "first look at the harbour, then at the old lighthouse"
LEFT = "the harbour has eleven boats and a crane that is painted green"
RIGHT = "the lighthouse was built by a fisherman in the year of the storm"
THIRD = "nobody has been on the island since the ferry was sold to Norway"


class Workflow:
    """Calls of one workflow that tell agents' names alone."""

    def __init__(self):
        self.inference, self.asked = Inference(), {}

    def ask(self, name, upstream, *texts, agent=None, **known):
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": "\n".join(("Go on:", *texts))}],
        }
        identity = Identity(workflow_id="w", agent=agent or name, upstream=upstream, **known)
        prompt = prompt_of(json.dumps(body).encode())
        self.asked[name] = self.inference.infer_fields(identity, prompt, "t")
        return set(identity.parent_ids)

    def answer(self, name, text):
        body = {"choices": [{"index": 0, "message": {"content": text}}]}
        self.inference.remember_answer(
            self.asked[name], name, json.dumps(body).encode(), streamed=False
        )

    def branches(self, **texts):
        """A plan, and calls that follow it at once, with these answers."""
        self.ask("plan", "user")
        self.answer("plan", PLAN)
        for name in texts:
            self.ask(name, "plan", PLAN)
        for name, text in texts.items():
            self.answer(name, text)
        return self


@pytest.mark.parametrize(
    ("texts", "upstream", "carried", "joined"),
    [
        ({"a": LEFT, "b": RIGHT}, "b", (LEFT, RIGHT), {"a", "b"}),
        ({"a": LEFT, "b": RIGHT}, "b", (LEFT,), {"a", "b"}),  # the named one it has waited for
        ({"a": LEFT, "b": RIGHT}, "b", (RIGHT,), set()),
        ({"a": LEFT, "b": RIGHT}, "b", (), set()),
        ({"a": LEFT, "b": RIGHT, "c": THIRD}, "c", (LEFT, THIRD), {"a", "c"}),
        ({"a": LEFT, "b": RIGHT, "c": THIRD}, "a", (PLAN, LEFT, RIGHT, THIRD), {"a", "b", "c"}),
        ({"a": LEFT, "b": RIGHT}, "b", (PLAN, RIGHT), set()),  # what led to both
        ({"a": LEFT, "b": LEFT, "c": RIGHT}, "c", (LEFT, RIGHT), set()),  # whose text is it?
        ({"a": LEFT, "b": f"I think: {LEFT}", "c": RIGHT}, "c", (LEFT, RIGHT), set()),
        ({"a": "yes, of course", "b": RIGHT}, "b", ("yes, of course", RIGHT), set()),  # too short
        ({"a": LEFT, "b": RIGHT}, "plan", (LEFT, RIGHT), set()),  # it names what led to both
        ({"a": LEFT, "b": RIGHT}, "nobody", (LEFT, RIGHT), set()),
        ({"a": LEFT}, "a", (PLAN, LEFT), set()),
    ],
)  # fmt: skip
def test_a_call_joins_the_branches_whose_answers_it_has(texts, upstream, carried, joined):
    workflow = Workflow().branches(**texts)
    assert workflow.ask("join", upstream, *carried) == joined


def test_ids_that_are_told_stay_as_they_are():
    workflow = Workflow().branches(a=LEFT, b=RIGHT)
    assert workflow.ask("join", "b", LEFT, RIGHT, parent_ids=("b",)) == {"b"}


def test_several_calls_of_one_agent_are_joined():
    workflow = Workflow()
    workflow.ask("plan", "user")
    workflow.answer("plan", PLAN)
    for number, text in enumerate((LEFT, RIGHT, THIRD)):
        workflow.ask(f"s{number}", "plan", PLAN, agent="search")
        workflow.answer(f"s{number}", text)
    assert workflow.ask("sum", "search", LEFT, RIGHT, THIRD) == {"s0", "s1", "s2"}


def test_what_has_gone_on_already_is_no_branch_any_more():
    workflow = Workflow().branches(a=LEFT, b=RIGHT)
    workflow.ask("after", "plan", LEFT, RIGHT)  # follows both, though it names what led to them
    workflow.answer("after", THIRD)
    assert workflow.ask("last", "after", LEFT, RIGHT, THIRD) == set()


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_no_remainder_of_a_drawn_program_becomes_too_large(seed, joins):
    draw = Random(seed)
    program = drawn_program(draw, joins=joins)
    for share in (1.0, 0.5):
        calls = with_carried(played(program, draw), Random(seed), share)
        graph = CallGraph()
        for call in calls.values():
            graph.add(call.span)
        found, true = remaining_work(graph), truly_remaining(calls)
        assert all(found[name].work_us <= 1.05 * true[name] for name in calls)
        before: dict[str, set[str]] = {}
        for name, call in calls.items():
            before[name] = {*call.after}.union(*(before[each] for each in call.after))
            assert {*call.span.parent_ids} <= before[name]


class Counted:
    """Calls of drawn programs, as prompts that have answers place them."""

    def __init__(self, share):
        self.share, self.calls, self.wrong, self.too_large, self.too_small = share, 0, 0, 0, 0
        self.joins = self.found = 0

    def play(self, seed, *, joins):
        draw = Random(seed)
        program = drawn_program(draw, joins=joins)
        placed = {}
        for _ in range(3):
            calls = with_carried(played(program, draw), draw, self.share)
            graph = CallGraph()
            for call in calls.values():
                graph.add(call.span)
            found, true = remaining_work(graph), truly_remaining(calls)
            for name, call in calls.items():
                ratio, right = (
                    found[name].work_us / true[name],
                    graph.nodes[name].caller == call.caller,
                )
                self.calls += 1
                self.wrong += not right
                self.too_large += ratio > 1.05
                self.too_small += ratio < 0.95
                if call.step.joins:
                    placed.setdefault(name, []).append(right)
        self.joins += len(placed)
        self.found += sum(map(all, placed.values()))


@pytest.mark.parametrize(
    "programs", [20, pytest.param(2_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_joins_of_drawn_programs_are_found_where_prompts_have_the_answers(programs):
    for share in (1.0, 0.5):
        found, none = Counted(share), Counted(share)
        for seed in range(programs):
            found.play(seed, joins=True)
            none.play(seed, joins=False)
        print(share, vars(found), vars(none))
        assert found.too_large <= 0.002 * found.calls
        assert none.too_large <= 0.002 * none.calls
        if share == 1.0:
            assert found.found >= 0.95 * found.joins
            assert none.wrong <= 0.001 * none.calls
