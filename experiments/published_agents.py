"""Workflows as thirteen published agent systems make them: none was used to tune anything.

What is known of each is its shape: which agents call, how often, what runs side by side. Lengths
are drawn, log-normal around a median that stands with the call, as these systems' papers and
prompts have them to within a factor; none is measured. Widths are drawn evenly from a range, or
from a Pareto distribution where the paper's inputs have a heavy tail. A graph of thought scores 50
to 100 thoughts at once: such a fan-out is what a queue of calls takes for as many callers.
"""

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from kairos.simulate import FileCall, Workflow
from kairos.simulate.workload.workflows import workflow


class Say(NamedTuple):
    """A call: who makes it, its prompt, and the median of its answer, in tokens."""

    agent: str
    prompt: int
    answer: int
    spread: float = 0.5  # of the logarithm of the answer's length


Stage = list[Say]  # side by side; the next begins when all have ended
Shape = Callable[[Random], Iterator[Stage]]


def react_fever(random: Random) -> Iterator[Stage]:
    for step in range(random.randint(2, 6)):
        yield [Say("think", 1200 + 110 * step, 60)]


def react_hotpot(random: Random) -> Iterator[Stage]:
    for step in range(random.randint(3, 8)):
        yield [Say("think", 1400 + 200 * step, 80)]


def reflexion(random: Random) -> Iterator[Stage]:
    for trial in range(random.randint(1, 3)):
        for step in range(random.randint(3, 6)):
            yield [Say("act", 1100 + 250 * trial + 150 * step, 90)]
        yield [Say("reflect", 1500 + 250 * trial, 160)]


def metagpt(random: Random) -> Iterator[Stage]:
    for number, role in enumerate(("product", "architect", "project")):
        yield [Say(role, 600 + 500 * number, 500)]
    yield [Say("engineer", 1800, 550, 0.7) for _ in range(random.randint(2, 6))]
    yield [Say("tester", 2200, 350)]


def chatdev(random: Random) -> Iterator[Stage]:
    for turn in range(random.randint(8, 24)):
        role = ("executive", "programmer", "reviewer")[turn % 3]
        yield [Say(role, 900 + 70 * turn, 260, 0.6)]


def graph_of_thought(random: Random) -> Iterator[Stage]:
    width = random.randint(50, 100)
    yield [Say("split", 1200, 400)]
    yield [Say("think", 900, 420) for _ in range(width)]
    yield [Say("merge", 1300, 450) for _ in range(width // 8)]
    yield [Say("improve", 1800, 400)]


def tree_of_thoughts(random: Random) -> Iterator[Stage]:
    for depth in range(random.randint(2, 4)):
        yield [Say("propose", 700 + 100 * depth, 120) for _ in range(5)]
        yield [Say("value", 500 + 100 * depth, 40) for _ in range(15)]


def debate(random: Random) -> Iterator[Stage]:
    for turn in range(random.randint(2, 3)):
        yield [Say("debater", 400 + 900 * turn, 260) for _ in range(3)]
    yield [Say("judge", 2600, 120)]


def map_reduce(random: Random) -> Iterator[Stage]:
    width = min(60, int(4 * random.paretovariate(1.2)))
    yield [Say("map", 2400, 180) for _ in range(width)]
    for _ in range(math.ceil(width / 12)):
        yield [Say("reduce", 2600, 300)]


def self_consistency(random: Random) -> Iterator[Stage]:
    yield [Say("sample", 900, 170) for _ in range(random.randint(10, 20))]
    yield [Say("vote", 2000, 60)]


def autogen_code(random: Random) -> Iterator[Stage]:
    for turn in range(min(8, 1 + int(random.expovariate(0.5)))):
        yield [Say("assistant", 900 + 350 * turn, 340, 0.6)]


def retrieval(random: Random) -> Iterator[Stage]:  # noqa: ARG001
    yield [Say("rewrite", 300, 30)]
    yield [Say("answer", 2200, 150)]


def plan_and_execute(random: Random) -> Iterator[Stage]:
    yield [Say("plan", 1500, 200)]
    yield [Say("execute", 900, 120) for _ in range(random.randint(2, 6))]
    yield [Say("respond", 1800, 180)]


SHAPES: dict[str, Shape] = {
    shape.__name__.replace("_", "-"): shape
    for shape in (
        react_fever,
        react_hotpot,
        reflexion,
        metagpt,
        chatdev,
        graph_of_thought,
        tree_of_thoughts,
        debate,
        map_reduce,
        self_consistency,
        autogen_code,
        retrieval,
        plan_and_execute,
    )
}


def workflows(
    count: int, seed: int, context: int, most: tuple[str, float] | None
) -> list[Workflow]:
    """Draw `count` workflows, each of a system at random.

    `most` names a system and its share of them. Prompts are cut to what the answer leaves of
    `context`.
    """
    random = Random(seed)  # noqa: S311  (a workload, no secret)
    names = list(SHAPES)
    weights = [1.0] * len(names)
    if most is not None:
        name, share = most
        weights[names.index(name)] = share / (1 - share) * (len(names) - 1)
    return [
        _made(f"{app}-{seed}-{number}", app, random, context)
        for number, app in enumerate(random.choices(names, weights, k=count))
    ]


def _made(name: str, app: str, random: Random, context: int) -> Workflow:
    calls: list[FileCall] = []
    before = "user"
    for number, stage in enumerate(SHAPES[app](random)):
        group = f"stage {number}" if len(stage) > 1 else None
        calls += [
            _call(name, app, len(calls) + place, say, before, group, random, context)
            for place, say in enumerate(stage)
        ]
        before = stage[-1].agent
    return workflow(calls)


def _call(
    name: str,
    app: str,
    index: int,
    say: Say,
    before: str,
    group: str | None,
    random: Random,
    context: int,
) -> FileCall:
    answer = round(say.answer * random.lognormvariate(0, say.spread))
    answer = min(max(1, answer), context // 2)
    prompt = round(say.prompt * random.uniform(0.8, 1.25))
    prompt = min(prompt, context - answer)
    return FileCall(
        workflow_id=name,
        app=app,
        agent=say.agent,
        upstream=before,
        call_index=index,
        prompt_tokens=prompt,
        completion_tokens=answer,
        parallel_group=group,
        shared_prefix_tokens=min(300, prompt // 3),
    )
