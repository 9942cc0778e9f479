"""`python -m experiments.inferred`: what would be inferred of recorded agents that say nothing.

Recordings are numbers without text, so words are made up, by rules:

- an agent's calls begin with the same words, its system prompt;
- a call whose prompt is no shorter than its agent's last one together with the answer goes on with
  that conversation; where it was led to by a tool, with the result of a tool call of that answer;
- any other begins anew, and repeats the answer of the agent that led to it, where there is one and
  the prompt has room for it;
- the rest of a prompt is words that no other has.

So this does not tell how alike real texts are (`tests/frameworks` does). It tells what is found
where calls are as long, as many and as mixed up as recorded (prompts of up to a megabyte, fifty
workflows at once), so that a bound that is too tight would show. Calls go in the order of the file,
those of several workflows mixed by chance. Takes two minutes.
"""

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import product
from random import Random
from typing import NamedTuple

from rich.console import Console

from experiments.recordings import Workflow, read_apps, recordings
from kairos.request import Identity, Inference
from kairos.request.identity.conversation import prompt_of
from kairos.request.identity.engine_reply import Reply

AT_ONCE, MOST_CALLS, SEED = 50, 12_000, 1
SYSTEM_TOKENS = 400
OUTSIDE_TOOLS = {"tool", "env", "code_exec"}
LETTERS = "abcdefghijklmnop"  # of words: three and a space, so 4,096, a token each
TENANT = "default"


class Score(NamedTuple):
    """Of pairs of calls, or of edges: how many are found rightly, found at all, and there."""

    right: int = 0
    found: int = 0
    true: int = 0

    def plus(self, other: "Score") -> "Score":
        return Score(self.right + other.right, self.found + other.found, self.true + other.true)

    def __str__(self) -> str:
        """Precision and recall."""
        precision = f"{self.right / self.found:.2f}" if self.found else "-"
        return f"{precision} / {self.right / self.true:.2f}" if self.true else "-"


def score_of_sets(found: set[Hashable], true: set[Hashable]) -> Score:
    return Score(len(found & true), len(found), len(true))


def score_of_pairs(calls: Iterable[tuple[Hashable, Hashable]]) -> Score:
    """Of every two calls: whether they are of one group. `calls`: of each, which group it is taken
    for (None: it is alone), and which one is its own."""
    both, found, true = Counter[Hashable](), Counter[Hashable](), Counter[Hashable]()
    for taken, own in calls:
        true[own] += 1
        if taken is not None:
            found[taken] += 1
            both[taken, own] += 1
    return Score(*(sum(n * (n - 1) // 2 for n in each.values()) for each in (both, found, true)))


class Made(NamedTuple):
    """A call in words."""

    id: str
    workflow_id: str
    agent: str
    parent_id: str | None  # of the call whose answer it carries
    body: bytes
    reply: Reply


class _Chain:
    """One agent's conversation."""

    def __init__(self, system: bytes) -> None:
        self.messages = [system]
        self.tokens = 0  # of its last prompt
        self.answered = 0  # tokens of the answer to that
        self.last: Made | None = None


class Wording:
    """Words for recorded calls."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311
        self._words = [f"{''.join(letters)} " for letters in product(LETTERS, repeat=3)]
        self._systems: dict[tuple[str, str], bytes] = {}

    def calls(self, workflow: Workflow) -> Iterator[Made]:
        """The same number of tokens as recorded, give or take what JSON is written around them."""
        chains: dict[tuple[str, str | None], _Chain] = {}
        last_of: dict[str, Made] = {}
        for position, call in enumerate(workflow):
            key = call.agent, call.parallel_group
            chain = chains.get(key)
            if chain is None or call.prompt_tokens < chain.tokens + chain.answered:
                chain = chains[key] = _Chain(self._system(call.app, call.agent))
            by_tool = call.upstream in OUTSIDE_TOOLS
            parent = chain.last
            new = call.prompt_tokens - chain.tokens - chain.answered
            if parent is not None:
                chain.messages += _continued(parent, self._text(new), by_tool=by_tool)
            else:
                parent = last_of.get(call.upstream or "")
                room = call.prompt_tokens - SYSTEM_TOKENS
                told = parent.reply.text if parent and len(parent.reply.text) <= 4 * room else ""
                parent = parent if told else None
                own = self._text(max(1, room - len(told) // 4))
                chain.messages.append(_message("user", f"{own}\n{told}"))
            made = Made(
                f"{call.workflow_id}#{position}",
                call.workflow_id,
                f"{call.app} {call.agent}",
                parent and parent.id,
                b'{"model":"m","messages":[' + b",".join(chain.messages) + b"]}",
                Reply(
                    self._text(call.completion_tokens), (f"call-{self._random.getrandbits(64)}",)
                ),
            )
            chain.tokens, chain.answered = call.prompt_tokens, call.completion_tokens
            chain.last = last_of[call.agent] = made
            yield made

    def _system(self, app: str, agent: str) -> bytes:
        if (app, agent) not in self._systems:
            self._systems[app, agent] = _message("system", self._text(SYSTEM_TOKENS))
        return self._systems[app, agent]

    def _text(self, tokens: int) -> str:
        return "".join(self._random.choices(self._words, k=max(1, tokens))).strip()


def _continued(before: Made, text: str, *, by_tool: bool) -> list[bytes]:
    """What a client adds to a conversation: the answer, and what came of it."""
    if not by_tool:
        return [_message("assistant", before.reply.text), _message("user", text)]
    (name,) = before.reply.ids
    function = {"name": "act", "arguments": "{}"}
    calls = [{"id": name, "type": "function", "function": function}]
    return [
        _message("assistant", before.reply.text, tool_calls=calls),
        _message("tool", text, tool_call_id=name),
    ]


def _message(role: str, content: str, **more: object) -> bytes:
    return json.dumps({"role": role, "content": content, **more}).encode()


def _answer(reply: Reply) -> bytes:
    calls = [{"id": each, "function": {"arguments": "{}"}} for each in reply.ids]
    message = {"content": reply.text, "tool_calls": calls}
    return json.dumps({"choices": [{"message": message}]}).encode()


def mixed(workflows: Sequence[Workflow], seed: int) -> Iterator[Made]:
    """The calls of `AT_ONCE` workflows at a time, each in its order."""
    random, wording = Random(seed), Wording(seed)  # noqa: S311
    waiting = [wording.calls(workflow) for workflow in workflows]
    under_way: list[Iterator[Made]] = []
    while waiting or under_way:
        while waiting and len(under_way) < AT_ONCE:
            under_way.append(waiting.pop())
        chosen = random.randrange(len(under_way))
        made = next(under_way[chosen], None)
        if made is None:
            under_way.pop(chosen)
        else:
            yield made


def scores(calls: Iterable[Made]) -> tuple[Score, Score, Score]:
    """Of agents, workflows and upstreams."""
    inference = Inference()
    agents, workflows = list[tuple[Hashable, Hashable]](), list[tuple[Hashable, Hashable]]()
    found, true = set[Hashable](), set[Hashable]()
    for call in calls:
        identity = Identity()
        asked = inference.infer_fields(identity, prompt_of(call.body), TENANT)
        if asked is not None:
            inference.remember_answer(asked, call.id, _answer(call.reply), streamed=False)
        agents.append((identity.agent, call.agent))
        workflows.append((identity.workflow_id or call.id, call.workflow_id))
        found |= {(parent, call.id) for parent in identity.parent_ids}
        if call.parent_id is not None:
            true.add((call.parent_id, call.id))
    return score_of_pairs(agents), score_of_pairs(workflows), score_of_sets(found, true)


def chosen(workflows: Sequence[Workflow], seed: int) -> list[Workflow]:
    """In an order of chance, as many as have `MOST_CALLS` calls."""
    shuffled = Random(seed).sample(workflows, len(workflows))  # noqa: S311
    taken, calls = list[Workflow](), 0
    for workflow in shuffled:
        if calls + len(workflow) <= MOST_CALLS:
            taken.append(workflow)
            calls += len(workflow)
    return taken


def main() -> None:
    out = Console(highlight=False)
    agentic, _ = recordings()
    out.print("| recorded | calls | agents | workflows | upstreams |\n| - | - | - | - | - |")
    for app, workflows in read_apps(agentic).items():
        taken = chosen(workflows, SEED)
        figures = " | ".join(map(str, scores(mixed(taken, SEED))))
        out.print(f"| {app} | {sum(map(len, taken)):,} | {figures} |")


if __name__ == "__main__":
    main()
