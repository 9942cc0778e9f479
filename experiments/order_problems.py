"""Small batches of Helium's five primitives, of the sizes of its comparison with the optimum: two
to four agents, two to four queries. Lengths in tokens are ours."""

from collections.abc import Sequence
from random import Random

import msgspec

from kairos.plan.costs.token_steps import PromptSegment, ScheduledCall
from kairos.plan.nesting import of_rows

KV_TOKENS = 8_192


class OrderProblem(msgspec.Struct, frozen=True):
    """`calls`: of one query. The first segment of each prompt is the same for all queries."""

    name: str
    calls: dict[str, ScheduledCall]
    queries: int

    def of_batch(self) -> dict[str, ScheduledCall]:
        return of_rows(self.calls, dict.fromkeys(self.calls, 1), self.queries)

    @property
    def static(self) -> dict[str, str]:
        return {name: each.prompt[0].name for name, each in self.calls.items()}


def _call(
    static: str, size: int, rest: list[tuple[str, int]], out: int, after: tuple[str, ...] = ()
) -> ScheduledCall:
    prompt = (PromptSegment(static, size), *(PromptSegment(*each) for each in rest))
    return ScheduledCall(prompt, out, after)


def map_reduce(agents: int, queries: int) -> OrderProblem:
    experts = {
        f"expert{n}": _call(f"role{n}", 60 + 10 * n, [("question", 150)], 90 + 40 * n)
        for n in range(agents)
    }
    answers = [(name, each.completion_tokens) for name, each in experts.items()]
    summary = _call("summarise", 50, [("question", 150), *answers], 120, tuple(experts))
    return _problem(f"map-reduce {agents}x{queries}", {**experts, "summary": summary}, queries)


def debate(agents: int, rounds: int, queries: int) -> OrderProblem:
    calls: dict[str, ScheduledCall] = {}
    for turn in range(rounds):
        for n in range(agents):
            others = [f"a{m}.{turn - 1}" for m in range(agents) if m != n] if turn else []
            own = [f"a{n}.{t}" for t in range(turn)]
            said = [(each, 100) for each in (*own, *others)]
            calls[f"a{n}.{turn}"] = _call(
                f"role{n}", 50, [("context", 400), *said], 100, (*own[-1:], *others)
            )
    return _problem(f"debate {agents}x{rounds}x{queries}", calls, queries)


def reflect(critics: int, queries: int) -> OrderProblem:
    calls = {"draft": _call("expert", 80, [("context", 500)], 150)}
    for n in range(critics):
        calls[f"critic{n}"] = _call(
            f"critic{n}", 60, [("context", 500), ("draft", 150)], 80, ("draft",)
        )
    views = [(f"critic{n}", 80) for n in range(critics)]
    calls["final"] = _call(
        "expert",
        80,
        [("context", 500), ("draft", 150), *views],
        160,
        tuple(name for name, _ in views),
    )
    return _problem(f"reflect {critics}x{queries}", calls, queries)


def iterate(chunks: int, queries: int) -> OrderProblem:
    calls: dict[str, ScheduledCall] = {}
    for n in range(chunks):
        before = [(f"s{n - 1}", 120)] if n else []
        calls[f"s{n}"] = _call(
            "summarise", 70, [*before, (f"chunk{n}", 600)], 120, tuple(name for name, _ in before)
        )
    return _problem(f"iterate {chunks}x{queries}", calls, queries)


def parallel(agents: int, chunks: int, queries: int) -> OrderProblem:
    calls: dict[str, ScheduledCall] = {}
    for n in range(agents):
        for c in range(chunks):
            said = [x for k in range(c) for x in ((f"chunk{k}", 300), (f"e{n}.{k}", 60))]
            after = (f"e{n}.{c - 1}",) if c else ()
            calls[f"e{n}.{c}"] = _call(f"role{n}", 70, [*said, (f"chunk{c}", 300)], 60, after)
    last = [f"e{n}.{chunks - 1}" for n in range(agents)]
    calls["write"] = _call("write", 40, [(each, 60) for each in last], 150, tuple(last))
    return _problem(f"parallel {agents}x{chunks}x{queries}", calls, queries)


def _problem(name: str, calls: dict[str, ScheduledCall], queries: int) -> OrderProblem:
    return OrderProblem(name, calls, queries)


SEVEN = (
    map_reduce(2, 3),
    map_reduce(4, 2),
    debate(2, 2, 2),
    reflect(2, 2),
    reflect(3, 2),
    iterate(3, 3),
    parallel(2, 2, 2),
)


def drawn_tree(
    draw: Random, calls: int, answers: Sequence[int], *, needs: bool
) -> dict[str, ScheduledCall]:
    """Draw calls with prompts that are a random tree.

    Args:
        draw: What decides.
        calls: How many.
        answers: The lengths that there are, in tokens; each call has one.
        needs: Whether calls need up to two of those before them.
    """
    paths: list[tuple[PromptSegment, ...]] = [()]
    made: dict[str, ScheduledCall] = {}
    for number in range(calls):
        path = draw.choice(paths)
        for depth in range(draw.randint(1, 3)):
            tokens = draw.choice((20, 100, 400, 1_500))
            path = (*path, PromptSegment(f"{number}.{depth}", tokens))
            paths.append(path)
        after = draw.sample([*made], min(len(made), draw.choice((0, 1, 1, 2)))) if needs else ()
        made[f"c{number}"] = ScheduledCall(path, draw.choice(answers), tuple(after))
    return made
