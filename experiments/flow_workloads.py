"""Workflows that Helium is measured on, as flows: its five primitives, and Trading.

Structures are the paper's (section 7, figures 2 and 6). Data sets that it takes are not all at
hand, so texts are made up, with lengths that a seed draws: a token is four bytes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from random import Random

import msgspec

from kairos import flow
from kairos.workflows import Operand
from kairos.workflows.compile.operators import Role

Row = Mapping[str, object]

_QUESTION = "{{ row.context }}\n{{ row.question }}"


class FlowWorkload(msgspec.Struct, frozen=True):
    """`row`: of a batch, by its number and the day; with another day what changes daily has."""

    name: str
    flow: flow.Flow
    row: Callable[[Random, int, int], Row]

    def rows(self, count: int, seed: int, day: int = 0) -> list[Row]:
        return [
            self.row(Random(f"{seed}/{number}"), number, day)  # noqa: S311
            for number in range(count)
        ]


def words(name: str, tokens: int) -> str:
    """A text of about so many tokens, the same for the same name."""
    word = blake2b(name.encode(), digest_size=4).hexdigest()[:7]
    return " ".join(f"{word[: 7 - len(str(at))]}{at}" for at in range(tokens // 2))


def _role(name: str, tokens: int = 120) -> str:
    return f"You are the {name}. {words(name, tokens)}"


def map_reduce(experts: int = 6) -> FlowWorkload:
    """Experts answer a question on a context each, a summariser has the last word."""
    f = flow.Flow("map_reduce", max_tokens=160, on_cut="keep")
    row = f.input("row")
    said = [
        f.llm(
            f"expert{n}",
            "{{ row.context }}\n{{ row.question }}",
            system=_role(f"expert {n}"),
            row=row,
        )
        for n in range(experts)
    ]
    f.output("answer", f.llm(
        "summary", "{{ row.question }}\n{{ said | join('\n') }}", system=_role("summariser"),
        row=row, said=said,
    ))  # fmt: skip
    return FlowWorkload("map-reduce", f, _question_on_context)


def debate(agents: int = 3, rounds: int = 3) -> FlowWorkload:
    """Agents answer, then answer again with what the others said in view. A conversation each."""
    f = flow.Flow("debate", max_tokens=160, on_cut="keep")
    row = f.input("row")
    talks: list[list[tuple[Role, str]]] = [
        [("system", _role(f"debater {n}")), ("user", _QUESTION)] for n in range(agents)
    ]
    inputs: list[dict[str, Operand]] = [{"row": row} for _ in range(agents)]
    said: list[Operand] = []
    for turn in range(rounds):
        said = [
            f.llm(f"a{n}_{turn}", [*talks[n]], inputs={**inputs[n]}) for n in range(agents)
        ]  # fmt: skip
        for n in range(agents):
            others = [m for m in range(agents) if m != n]
            heard = "\n".join(f"{{{{ a{m}_{turn} }}}}" for m in others)
            talks[n] += [("assistant", f"{{{{ a{n}_{turn} }}}}"), ("user", f"Others:\n{heard}")]
            inputs[n] |= {f"a{m}_{turn}": said[m] for m in range(agents)}
    f.output("answer", f.llm(
        "judge", "{{ row.question }}\n{{ said | join('\n') }}", system=_role("judge"),
        row=row, said=said,
    ))  # fmt: skip
    return FlowWorkload("debate", f, _question_on_context)


def reflect(critics: int = 3) -> FlowWorkload:
    """An expert drafts, critics object, the expert writes anew in the same conversation."""
    f = flow.Flow("reflect", max_tokens=160, on_cut="keep")
    row = f.input("row")
    talk: list[tuple[Role, str]] = [
        ("system", _role("expert")),
        ("user", "{{ row.context }}\n{{ row.question }}"),
    ]
    draft = f.llm("draft", talk, row=row)
    said = {
        f"critic{n}": f.llm(
            f"critic{n}", "{{ row.context }}\n{{ row.question }}\n{{ draft }}",
            system=_role(f"critic {n}"), row=row, draft=draft,
        )
        for n in range(critics)
    }  # fmt: skip
    heard = "\n".join(f"{{{{ {name} }}}}" for name in said)
    final = f.llm(
        "final", [*talk, ("assistant", "{{ draft }}"), ("user", heard)],
        inputs={"row": row, "draft": draft, **said},
    )  # fmt: skip
    f.output("answer", final)
    return FlowWorkload("reflect", f, _question_on_context)


def iterative(chunks: int = 6) -> FlowWorkload:
    """A summary is refined by one chunk after the other."""
    f = flow.Flow("iterative", max_tokens=160, on_cut="keep")
    row = f.input("row")
    summary = f.llm("s0", "{{ row.c0 }}", system=_role("summariser"), row=row)
    for n in range(1, chunks):
        summary = f.llm(
            f"s{n}",
            f"{{{{ s }}}}\n{{{{ row.c{n} }}}}",
            system=_role("summariser"),
            row=row,
            s=summary,
        )
    f.output("summary", summary)
    return FlowWorkload("iterative", f, _chunks(chunks))


def parallel(experts: int = 4, chunks: int = 6) -> FlowWorkload:
    """Experts go through the chunks in a conversation each; a writer puts it together."""
    f = flow.Flow("parallel", max_tokens=120, on_cut="keep")
    row = f.input("row")
    last = []
    for n in range(experts):
        talk: list[tuple[Role, str]] = [("system", _role(f"expert {n}"))]
        inputs: dict[str, Operand] = {"row": row}
        for c in range(chunks):
            talk.append(("user", f"{{{{ row.c{c} }}}}"))
            said = f.llm(f"e{n}_{c}", [*talk], inputs={**inputs})
            talk.append(("assistant", f"{{{{ e{n}_{c} }}}}"))
            inputs[f"e{n}_{c}"] = said
        last.append(said)
    f.output("report", f.llm("write", "{{ v | join('\n') }}", system=_role("writer"), v=last))
    return FlowWorkload("parallel", f, _chunks(chunks))


def _question_on_context(drawn: Random, number: int, _day: int) -> Row:
    """Six questions on each context, as TAT-QA has them."""
    return {
        "context": words(f"context {number // 6}", 300 + 50 * (number // 6 % 7)),
        "question": words(f"question {number}", drawn.randint(20, 60)),
    }


def _chunks(count: int) -> Callable[[Random, int, int], Row]:
    def row(drawn: Random, number: int, _day: int) -> Row:
        return {f"c{n}": words(f"{number} {n}", drawn.randint(200, 400)) for n in range(count)}

    return row


def trading(
    name: str = "trading", documents: tuple[int, int] = (200, 400), answers: int = 120
) -> FlowWorkload:
    """88 LLM operators: four analysts read three documents each and sum up; two researchers debate
    three rounds before a manager; eight traders decide, each with the same brief, and three risk
    managers object in two rounds; a fund manager has the last word. The briefs say the same, so one
    of the eight is left where equal operators are merged; the paper does not say which of its
    operators are. `documents`: their tokens, from and to; `answers`: the most tokens of one."""
    f = flow.Flow("trading", max_tokens=answers, on_cut="keep")
    row = f.input("row")
    digests = [_analyst(f, row, name) for name in ("market", "social", "news", "fundamentals")]
    findings = f.format("findings", "{{ d | join('\n') }}", d=digests)
    verdict = _research(f, findings)
    chains = [_chain(f, row, verdict, n) for n in range(8)]
    f.output("recommendation", f.llm(
        "fund_manager", "{{ row.profile }}\n{{ c | join('\n') }}", system=_role("fund manager"),
        row=row, c=chains,
    ))  # fmt: skip
    return FlowWorkload(name, f, partial(_stock, documents))


def trading_on_reports() -> FlowWorkload:
    """The same, with documents as long as a price history, an article or a financial statement."""
    return trading("trading on reports", (1_000, 5_000), 160)


def _analyst(f: flow.Flow, row: Operand, name: str) -> Operand:
    read = [
        f.llm(f"{name}_{n}", f"{{{{ row.{name}{n} }}}}", system=_role(f"{name} analyst"), row=row)
        for n in range(3)
    ]
    return f.llm(f"{name}_digest", "{{ r | join('\n') }}", system=_role(f"{name} analyst"), r=read)


def _research(f: flow.Flow, findings: Operand) -> Operand:
    said: list[Operand] = []
    for turn in range(3):
        for side in ("bull", "bear"):
            before = "{{ s | join('\n') }}" if said else ""
            bound: dict[str, object] = {"findings": findings} | ({"s": said} if said else {})
            text = "{{ findings }}\n" + before
            said = [*said, f.llm(
                f"{side}_{turn}", text, system=_role(f"{side} researcher"), inputs=bound
            )]  # fmt: skip
    return f.llm(
        "manager", "{{ findings }}\n{{ s | join('\n') }}", system=_role("research manager"),
        findings=findings, s=said,
    )  # fmt: skip


def _chain(f: flow.Flow, row: Operand, verdict: Operand, n: int) -> Operand:
    brief = f.llm(
        f"brief_{n}", "{{ row.profile }}\n{{ v }}", system=_role("secretary"), row=row, v=verdict
    )
    trader = f.llm(
        f"trader_{n}", "{{ row.profile }}\n{{ b }}", system=_role(f"trader {n}"), row=row, b=brief
    )
    said: list[Operand] = []
    for turn in range(2):
        for name in ("aggressive", "neutral", "cautious"):
            bound = {"row": row, "b": brief, "t": trader} | ({"s": said} if said else {})
            before = "\n{{ s | join('\n') }}" if said else ""
            said = [*said, f.llm(
                f"{name}_{n}_{turn}", "{{ row.profile }}\n{{ b }}\n{{ t }}" + before,
                system=_role(f"{name} risk manager"), inputs=bound,
            )]  # fmt: skip
    return said[-1]


def _stock(documents: tuple[int, int], drawn: Random, number: int, day: int) -> Row:
    """Prices and posts are new each day; of news a third stays, of fundamentals all does."""
    row = {"profile": words(f"profile {number}", 200)}
    for name, daily in (("market", 3), ("social", 3), ("news", 2), ("fundamentals", 0)):
        for n in range(3):
            which = day if n < daily else 0
            row[f"{name}{n}"] = words(f"{name} {number} {n} {which}", drawn.randint(*documents))
    return row


PRIMITIVES = (map_reduce, debate, reflect, iterative, parallel)
