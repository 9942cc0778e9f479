"""Programs of agents drawn at random, played with names alone, and what truly remains of them.

Independent of the orchestrator: a program knows for what each of its calls waits. Times in µs.
"""

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import msgspec

from kairos.core.orchestrator.spans import Span
from kairos.request import Identity, Inference, UnnamedCall
from kairos.request.identity.conversation import prompt_of

_MS, _S = 1_000, 1_000_000
_JITTER_US = 10 * _MS  # within which the calls of a fan-out arrive
_SHORTEST_US = 50 * _MS
_WORDS = [a + b + c for a in "btkmslr" for b in "aeiou" for c in ("n", "st", "ck", "m", "rd")]


class Step(msgspec.Struct):
    """An agent that is called once, and what it then has done, stage by stage.

    `varies`: logarithmic deviation of times from run to run. `gap_us`: of its tool, or of the agent
    itself, before the call. `joins`: numbers of the branches of the stage before that a join waits
    for. `named`: the number of the branch that it names; -1: the one that ended last.
    """

    name: str
    lasts_us: float
    varies: float
    gap_us: float
    gap_varies: float
    stages: "list[list[Step]]" = []
    likely: float = 1.0  # that its stage is run at all
    joins: tuple[int, ...] = ()
    named: int = -1


class Played(msgspec.Struct):
    """A call as it went: `caller` and `after` are the truth, which no name tells."""

    step: Step
    span: Span
    caller: str | None
    after: list[str]  # calls that it waited for


def drawn_program(draw: Random, *, joins: bool) -> Step:
    """A program of 3 to 25 agents; with `joins` it has at least one."""
    while True:
        names = (f"a{n}" for n in range(10_000))
        root = _step(draw, names, depth=3, joins=joins)
        steps = list(_all(root))
        has_joins = any(step.joins for step in steps)
        if 3 <= len(steps) <= 25 and has_joins == joins:
            return root


def _all(step: Step) -> Iterator[Step]:
    yield step
    for stage in step.stages:
        for each in stage:
            yield from _all(each)


def _step(draw: Random, names: Iterator[str], depth: int, *, joins: bool) -> Step:
    quick = draw.random() < 0.5
    step = Step(
        name=next(names),
        lasts_us=_SHORTEST_US + 10 ** draw.uniform(5, 6.5),
        varies=draw.uniform(0.05, 0.6),
        gap_us=draw.uniform(2, 10) * _MS if quick else 10 ** draw.uniform(4, 6.5),
        gap_varies=draw.uniform(0.05, 0.6),
    )
    for _ in range(draw.choice((0, 1, 1, 2)) if depth else 0):
        width = draw.choice((1, 2, 2, 3, 4))
        stage = [_step(draw, names, depth - 1, joins=joins) for _ in range(width)]
        likely = draw.choice((1.0, 1.0, 0.7))
        for each in stage:
            each.likely = likely
        step.stages.append(stage)
        if joins and width > 1 and draw.random() < 0.6:
            join = _step(draw, names, depth - 1, joins=joins)
            of_all = width == 2 or draw.random() < 0.7
            joined = range(width) if of_all else draw.sample(range(width), width - 1)
            join.joins, join.likely = tuple(joined), likely
            join.named = draw.choice((-1, draw.choice(join.joins)))
            step.stages.append([join])
    return step


def joined_branches(program: Step) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield joins by name, each with the number of the branch that each agent before it is in."""
    for step in _all(program):
        for branches, after in pairwise(step.stages):
            if after[0].joins:
                numbered = enumerate(branches)
                yield after[0].name, {each.name: n for n, b in numbered for each in _all(b)}


class _Run:
    """Plays a program once.

    `together`: calls of a fan-out arrive at once, else each after a tool of its own.
    """

    def __init__(self, draw: Random, *, together: bool) -> None:
        self.calls: dict[str, Played] = {}
        self._draw, self._together = draw, together

    def play(
        self, step: Step, caller: str | None, upstream: str, after: list[str], gap_us: int
    ) -> list[str]:
        """Play a call with all that follows; returns the calls that end it."""
        ready_at = max((self.end(each) for each in after), default=0)
        begun_at = ready_at + gap_us
        lasts_us = int(step.lasts_us * self._draw.lognormvariate(0, step.varies))
        span = Span(
            id=step.name,
            agent=step.name,
            upstream=upstream,
            started_at=begun_at,
            finished_at=begun_at + max(_SHORTEST_US, lasts_us),
        )
        self.calls[step.name] = Played(step, span, caller, after)
        ends = [step.name]
        branches: list[list[str]] = []
        happens = True
        for stage in step.stages:
            if not stage[0].joins:
                happens = self._draw.random() < stage[0].likely
            if happens and stage[0].joins:
                ends, branches = self._join(stage[0], step.name, branches), []
            elif happens:
                branches = self._fan_out(stage, step.name, ends)
                ends = [end for branch in branches for end in branch]
        return ends

    def _fan_out(self, stage: list[Step], caller: str, after: list[str]) -> list[list[str]]:
        shared = self._gap(stage[0])
        branches = []
        for each in stage:
            jitter = self._draw.randint(0, _JITTER_US) if len(stage) > 1 else 0
            gap = shared + jitter if self._together else self._gap(each)
            branches.append(self.play(each, caller, caller, after, gap))
        return branches

    def _join(self, join: Step, caller: str, branches: list[list[str]]) -> list[str]:
        joined = [end for number in join.joins for end in branches[number]]
        named = joined if join.named < 0 else branches[join.named]
        upstream = max(named, key=self.end)
        ends = self.play(join, caller, upstream, joined, self._gap(join))
        beside = [n for n in range(len(branches)) if n not in join.joins]
        return ends + [end for number in beside for end in branches[number]]

    def _gap(self, step: Step) -> int:
        return int(step.gap_us * self._draw.lognormvariate(0, step.gap_varies))

    def end(self, call: str) -> int:
        return self.calls[call].span.finished_at


def played(program: Step, draw: Random, *, together: bool = True) -> dict[str, Played]:
    """Play a program once; return its calls by name, none before a call that it waited for."""
    run = _Run(draw, together=together)
    run.play(program, None, "user", [], 0)
    return run.calls


def with_carried(calls: dict[str, Played], draw: Random, share: float) -> dict[str, Played]:
    """Return the same calls, with the ids that Kairos finds by their prompts, where it finds any.

    A call's prompt has the text of each reply that the call waited for, with a chance of `share`,
    and of replies that led to these.
    """
    inference, asked = Inference(), dict[str, UnnamedCall | None]()
    words = {name: " ".join(draw.choices(_WORDS, k=12)) for name in calls}
    found: dict[str, Played] = {}
    events = [(call.span.started_at, 1, name) for name, call in calls.items()]
    events += [(call.span.finished_at, 0, name) for name, call in calls.items()]
    for _, begins, name in sorted(events):
        call = calls[name]
        if not begins:
            body = {"choices": [{"index": 0, "message": {"content": words[name]}}]}
            told = asked[name]
            assert told is not None
            inference.remember_answer(told, name, msgspec.json.encode(body), streamed=False)
            continue
        carried = [each for each in _before(calls, call) if draw.random() < share]
        text = "\n".join(["Go on from this:", *(words[each] for each in carried)])
        message = {"role": "user", "content": text}
        prompt = prompt_of(msgspec.json.encode({"model": "m", "messages": [message]}))
        identity = Identity(workflow_id="w", agent=name, upstream=call.span.upstream)
        asked[name] = inference.infer_fields(identity, prompt, "t")
        span = msgspec.structs.replace(call.span, parent_ids=identity.parent_ids)
        found[name] = msgspec.structs.replace(call, span=span)
    return {name: found[name] for name in calls}


def _before(calls: dict[str, Played], call: Played) -> Iterator[str]:
    """Yield the calls that a call waited for, and one that led to each."""
    for name in call.after:
        yield name
        yield from calls[name].after[:1]


def truly_remaining(calls: dict[str, Played]) -> dict[str, int]:
    """The work on the longest path of calls that wait for each other, from each call on."""
    longest = dict.fromkeys(calls, 0)
    for name, call in reversed(calls.items()):
        longest[name] += call.span.execution_us
        for before in call.after:
            longest[before] = max(longest[before], longest[name])
    return longest
