"""Small batches of Helium's five primitives, of the sizes of its comparison with the optimum: two
to four agents, two to four queries. Lengths in tokens are ours."""

from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from experiments.token_steps import usage
from kairos.workflows.compile.call_shapes import PromptSegment, ScheduledCall, delay
from kairos.workflows.compile.passes.order import Sequences

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


def of_rows(
    calls: Mapping[str, ScheduledCall], varies: Mapping[str, int], rows: int
) -> dict[str, ScheduledCall]:
    """Return the calls of `rows` rows, by `row/operator`.

    `varies`: by operator, with which segment of its prompt, from 0, rows begin to differ.
    """
    return {
        f"{row}/{name}": ScheduledCall(
            tuple(
                PromptSegment(f"{row}/{each.name}", each.tokens) if at >= varies[name] else each
                for at, each in enumerate(call.prompt)
            ),
            call.completion_tokens,
            tuple(f"{row}/{needed}" for needed in call.after),
        )
        for row in range(rows)
        for name, call in calls.items()
    }


def expanded(sequences: Sequences, rows: int) -> tuple[str, ...]:
    """Return the order of all calls of these rows, as `of_rows` names them."""
    return tuple(
        f"{row}/{name}" for sequence in sequences for row in range(rows) for name in sequence
    )


def best_effort(
    order: Sequence[str], calls: Mapping[str, ScheduledCall], kv_tokens: int
) -> tuple[str, ...]:
    """Return how one worker carries the order out.

    Always the first goes that may begin, or where none may the one that may first. So an order that
    contradicts what is needed is carried out as well.
    """
    place = {name: at for at, name in enumerate(order)}
    needed_by: dict[str, list[str]] = {name: [] for name in calls}
    waits_for = {name: len(set(calls[name].after)) for name in order}
    for name in order:
        for needed in set(calls[name].after):
            needed_by[needed].append(name)
    begins_at = dict.fromkeys(order, 0.0)
    ready = {name for name in order if not calls[name].after}
    done: list[str] = []
    now, before = 0.0, None
    while ready:
        may = [name for name in ready if begins_at[name] <= now]
        if may:
            chosen = min(may, key=place.__getitem__)
        else:
            chosen = min(ready, key=lambda name: (begins_at[name], place[name]))
        ready.remove(chosen)
        call = calls[chosen]
        now = max(now, begins_at[chosen]) + usage(before, call, kv_tokens)
        done.append(chosen)
        before = call
        for waits in needed_by[chosen]:
            waits_for[waits] -= 1
            begins_at[waits] = max(begins_at[waits], now + delay(call))
            if not waits_for[waits]:
                ready.add(waits)
    assert len(done) == len(order), "calls need each other in a circle"
    return tuple(done)
