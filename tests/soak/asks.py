"""What the soak's clients ask, and when: a function of the seed.

Calls come as a Poisson stream below the pool's capacity, with bursts of three times of it. Several
apps' agents make them within workflows, or nobody who says so; some leave, some have a deadline,
some ask for what is none. What each is to be answered is known: the words, where these are a
function of the prompt, and how many, where they are noise.
"""

import random
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from tests.faults.poison import POISON
from tests.soak.engine import ENGINE_SEED, EngineKind
from tests.support.simulate.standin import Script, ScriptLimits, StandInBody, chat_prompt

USUAL, BURST = 0.5, 3.0  # of the capacity of all
BURST_EVERY_S, BURST_S = 30.0, 3.0
NOISE = "as it is"  # an answer that nobody knows before, in a conversation that goes on

# broken: no JSON. stranger: of a model that nobody serves. failing: the engine fails amid it.
# poisonous: all engines break the connection at it; made by one agent, half of them not for the
# first time.
Kind = Literal["well", "broken", "stranger", "failing", "poisonous"]
_POISONS = 5  # of half of them
_Message = dict[str, str]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    at_s: float  # since the start
    kind: Kind
    headers: dict[str, str]
    body: bytes
    streamed: bool
    says: str = ""  # the text of a right answer, where it is known
    tokens: int = 0  # of it, where only that is known
    patience_s: float
    leaves: bool = False  # its patience is too short, on purpose
    hasty: bool = False  # closes the connection at [DONE], before the answer has ended
    deadline_s: float | None = None  # after it was sent


class Asks:
    """All calls of one seed, without an end."""

    def __init__(self, seed: int, engine: EngineKind, engines: int) -> None:
        """`engines`: how many there are of it."""
        self._dice = random.Random(seed)
        self._name = f"soak-{seed}"
        self._engine = engine
        self._capacity = engine.calls_per_s * engines
        self._script = Script(seed=ENGINE_SEED)
        self._workflows: list[tuple[str, str]] = []  # those under way: id and app
        self._told: list[list[_Message]] = []  # the latest conversations of nobody in particular
        self._made = 0

    def __iter__(self) -> Iterator[Ask]:
        at_s = 0.0
        while True:
            bursts = at_s % BURST_EVERY_S >= BURST_EVERY_S - BURST_S
            at_s += self._dice.expovariate(self._capacity * (BURST if bursts else USUAL))
            yield self._ask(at_s)

    def plain(self) -> Ask:
        """One that is to be answered whatever was before, as long as all is well."""
        prompt = [_said("user", self._words())]
        return self._worded(prompt, "well", {}, at_s=0.0, streamed=False, patience_s=60.0)

    def _ask(self, at_s: float) -> Ask:
        dice = self._dice
        kinds: list[Kind] = ["well", "broken", "stranger", "failing", "poisonous"]
        weights = (94, 1, 1, 2 if self._engine.is_scripted else 0, 2)
        kind = dice.choices(kinds, weights)[0]
        if kind == "poisonous":
            return self._poison(at_s)
        named = dice.random() < 0.7
        headers, prompt = self._of_workflow() if named else ({}, self._of_nobody())
        manner = dice.choices(("patient", "leaves", "deadline"), (75, 10, 15))[0]
        more: dict[str, Any] = {"patience_s": dice.uniform(8, 20)}
        if manner == "leaves":
            more = {"patience_s": dice.uniform(0.02, 2.5), "leaves": True}
        elif manner == "deadline":
            deadline_s = dice.uniform(1, 8)
            # What is not answered by then hangs.
            more = {"deadline_s": deadline_s, "patience_s": deadline_s + 30}
        more |= {"streamed": dice.random() < 0.6, "hasty": dice.random() < 0.2}
        ask = self._worded(prompt, kind, headers, at_s=at_s, **more)
        if not named:
            self._told = [*self._told[-50:], [*prompt, _said("assistant", ask.says or NOISE)]]
        return ask

    def _poison(self, at_s: float) -> Ask:
        which = self._dice.choice([self._dice.randrange(_POISONS), self._made])
        prompt = [_said("user", f"{POISON} {which}")]
        caller = {"X-Kairos-App": "app-0", "X-Kairos-Agent": "villain"}
        streamed = self._dice.random() < 0.6
        return self._worded(
            prompt, "poisonous", caller, at_s=at_s, streamed=streamed, patience_s=20.0
        )

    def _of_workflow(self) -> tuple[dict[str, str], list[_Message]]:
        dice = self._dice
        if len(self._workflows) < 20:
            workflow = f"{self._name}-w{self._made}", f"app-{dice.randrange(4)}"
            self._workflows.append(workflow)
        place = dice.randrange(len(self._workflows))
        workflow_id, app = self._workflows[place]
        if dice.random() < 0.25:
            del self._workflows[place]
        agent = f"agent-{dice.randrange(3)}"
        headers = {"Workflow-Id": workflow_id, "App": app, "Agent": agent}
        system = _said("system", f"You are {agent} of {app}. Do what you are told.")
        named = {f"X-Kairos-{name}": value for name, value in headers.items()}
        return named, [system, _said("user", self._words())]

    def _of_nobody(self) -> list[_Message]:
        """A conversation that begins, or goes on."""
        before: list[_Message] = []
        if self._told and self._dice.random() < 0.3:
            before = self._told.pop(self._dice.randrange(len(self._told)))
        if sum(len(each["content"]) for each in before) > self._engine.max_prompt_bytes // 2:
            before = []
        return [*before, _said("user", self._words())]

    def _words(self) -> str:
        """Mostly short, now and then long: a quarter of the longest on average."""
        size = int(self._engine.max_prompt_bytes * self._dice.betavariate(1, 3))
        return self._dice.randbytes(8 + size // 2).hex()

    def _worded(
        self, messages: list[_Message], kind: Kind, headers: dict[str, str], **more: Any
    ) -> Ask:
        self._made += 1
        ask_id = f"{self._name}-{self._made}"
        asked: dict[str, Any] = {
            "model": "nobody's" if kind == "stranger" else self._engine.model,
            "messages": messages,
            "max_tokens": 10 if kind == "poisonous" else self._dice.randint(10, 50),
            "stream": more["streamed"],
        }
        if kind == "failing":
            asked["fail"] = self._dice.choice(["error", "unavailable"])
        if self._engine.is_scripted:
            more["says"] = self._right_text(asked)
        else:
            more["tokens"] = asked["max_tokens"]
            asked |= full_length(streamed=more["streamed"])
        content = msgspec.json.encode(asked)
        # What goes on to an engine, so that who hurts calls there can say which.
        names = {"X-Request-Id": ask_id, "User-Agent": ask_id}
        return Ask(
            id=ask_id,
            kind=kind,
            headers={**headers, **names, "Content-Type": "application/json"},
            body=content[:-1] if kind == "broken" else content,
            **more,
        )

    def _right_text(self, asked: dict[str, Any]) -> str:
        body = msgspec.convert(asked, StandInBody)
        limits = ScriptLimits(max_tokens=body.asked_tokens or 1)
        return "".join(self._script.reply(chat_prompt(body), limits, None).tokens)


def full_length(*, streamed: bool) -> dict[str, Any]:
    """What else an engine is to be asked for as many tokens as it may say, and their number."""
    said: dict[str, Any] = {"ignore_eos": True}
    return said | {"stream_options": {"include_usage": True}} if streamed else said


def _said(role: str, content: str) -> _Message:
    return {"role": role, "content": content}
