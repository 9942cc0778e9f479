"""Compare measured factors of a placement's cost with hand sums over drawn calls and engines."""

import asyncio
from random import Random

import pytest

from experiments.e56_kept_order import drawn_flow
from kairos.core import UpstreamFailed
from kairos.workflows.compile.call_shapes import call_shapes
from kairos.workflows.compile.flow_work import ContextCall, measured_reuse, shared_contexts
from kairos.workflows.start.flow_measured import measured_sharing


def drawn_calls(draw, operators, rows=4):
    """Calls of all operators for some rows, in no order, some of them made twice."""
    names = [*call_shapes(operators).calls]
    found = []
    for row in range(rows):
        for name in draw.choices(names, k=2 * len(names)):
            begun, prompt = draw.randint(0, 1_000), draw.randint(20, 2_000)
            found.append(
                ContextCall(
                    row=(0, row),
                    operator=name,
                    begun_us=begun,
                    ended_us=begun + draw.randint(1, 300),
                    prompt_tokens=prompt,
                    cached_tokens=draw.choice((0, draw.randint(0, prompt))),
                )
            )
    return found


def by_hand(operators, calls):
    """Go through all pairs of calls."""
    contexts, shapes = shared_contexts(operators), call_shapes(operators)
    sums = []
    for call in calls:
        mine = contexts.get(call.operator)
        before = [
            other
            for other in calls
            if mine is not None
            and other.row == call.row
            and other.operator != call.operator
            and contexts.get(other.operator, ("", 0))[0] == mine[0]
            and other.ended_us <= call.begun_us
        ]
        if before:
            prompt = shapes.calls[call.operator].prompt
            same = 0
            for segment in prompt[: shapes.varies[call.operator]]:
                same += segment.tokens
            sums.append((max(0, call.cached_tokens - same), mine[1] * call.prompt_tokens))
    expected = sum(of for _, of in sums)
    return min(1.0, sum(found for found, _ in sums) / expected) if expected else None


@pytest.mark.parametrize("seed", range(60))
def test_reuse_is_what_calls_found_of_contexts_that_were_there_before_them(seed):
    draw = Random(seed)
    operators = drawn_flow(seed, rows=1)[0].compile().declaration.operators
    calls = drawn_calls(draw, operators)
    expected = by_hand(operators, calls)
    found = measured_reuse(operators, calls)
    assert found == (None if expected is None else pytest.approx(expected))


def test_drawn_cases_have_contexts_of_all_kinds():
    found = []
    for seed in range(60):
        operators = drawn_flow(seed, rows=1)[0].compile().declaration.operators
        found.append(measured_reuse(operators, drawn_calls(Random(seed), operators)))
    known = [each for each in found if each is not None]
    assert len(known) > 30
    assert max(known) - min(known) > 0.2


def test_of_engines_that_never_report_what_was_found_nothing_is_known():
    operators = drawn_flow(3, rows=1)[0].compile().declaration.operators
    calls = drawn_calls(Random(3), operators)
    assert measured_reuse(operators, calls) is not None
    silent = [ContextCall(**{**fields(each), "cached_tokens": 0}) for each in calls]
    assert measured_reuse(operators, silent) is None


def fields(call):
    return {name: getattr(call, name) for name in call.__struct_fields__}


class Engines:
    """Engines that make their calls in `s`, and k of them at once in s * k ** (1 - beta)."""

    def __init__(self, draw):
        self.count, self.beta, self.s = draw.randint(2, 8), draw.random(), draw.uniform(0.1, 5)
        self.calls = draw.choice((1, 2, 7, 32))
        self.tokens = [draw.randint(1, 90) for _ in range(self.calls)]
        self.at_s, self.asked, self.waiting = 0.0, [], 0

    def ask(self, engines):
        async def ask(body):
            number = body["messages"][0]["content"]
            self.asked.append(number)
            self.waiting += 1
            if self.waiting == engines * self.calls:
                self.waiting = 0
                self.at_s += self.s * engines ** (1 - self.beta)
            return self.tokens[int(number.split("q")[1])]

        return ask

    def measured(self):
        bodies = [{"messages": [{"role": "user", "content": f"q{n}"}]} for n in range(self.calls)]
        asks = self.ask(1), self.ask(self.count)
        return asyncio.run(measured_sharing(bodies, *asks, self.count, lambda: self.at_s))


@pytest.mark.parametrize("seed", range(40))
def test_sharing_is_the_power_by_which_drawn_engines_get_quicker(seed):
    engines = Engines(Random(seed))
    assert engines.measured() == pytest.approx(engines.beta, abs=1e-6)
    assert len({*engines.asked}) == len(engines.asked)  # no prompt is in a cache


def test_of_engines_that_fail_nothing_is_known():
    async def fails(body):
        raise UpstreamFailed("no")

    bodies = [{"messages": [{"role": "user", "content": "q"}]}]
    assert asyncio.run(measured_sharing(bodies, fails, fails, 2)) is None
