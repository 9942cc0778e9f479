"""Chats that are to be answered to their full length, whatever is said: so it can be told of any
engine, a real one with random weights too, whether an answer came whole."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from math import floor
from typing import Any

import aiohttp
import msgspec

from tests.soak.asks import Ask, full_length
from tests.soak.client import arrivals

WORDS = ("red", "green", "blue", "small", "large", "old", "new", "round", "flat", "warm", "cold")
_BINS_PER_S = 10


class Chats:
    """Calls of agents, within workflows, without an end: a function of the name."""

    def __init__(
        self,
        name: str,
        *,
        model: str,
        lengths: Mapping[str, tuple[int, int]],
        words: int,
        streamed: float,
        patience_s: float,
    ) -> None:
        """`lengths`: of answers, in tokens, the least and the most, by agent; `words`: of a prompt;
        `streamed`: the share of answers that come so."""
        self._name, self._dice = name, random.Random(name)
        self._model, self._lengths, self._words = model, lengths, words
        self._streamed, self._patience_s = streamed, patience_s
        self.made = 0

    def workflow(self) -> Iterator[Ask]:
        """One call of each agent; each is made when it is asked for."""
        workflow_id, upstream = f"{self._name}-w{self.made}", None
        for agent in self._lengths:
            yield self._chat(workflow_id, agent, upstream)
            upstream = agent

    def single(self) -> Ask:
        """Of any agent, in a workflow of its own."""
        agent = self._dice.choice(sorted(self._lengths))
        return self._chat(f"{self._name}-w{self.made}", agent, None)

    def _chat(self, workflow_id: str, agent: str, upstream: str | None) -> Ask:
        tokens = self._dice.randint(*self._lengths[agent])
        streamed = self._dice.random() < self._streamed
        chat_id = f"{self._name}-{self.made}"
        self.made += 1
        names = {"Workflow-Id": workflow_id, "App": "acceptance", "Agent": agent}
        if upstream is not None:
            names["Upstream"] = upstream
        headers = {f"X-Kairos-{name}": value for name, value in names.items()}
        return Ask(
            id=chat_id,
            at_s=0.0,
            kind="well",
            headers={**headers, "X-Request-Id": chat_id, "Content-Type": "application/json"},
            body=self._body(chat_id, agent, tokens, streamed=streamed),
            streamed=streamed,
            patience_s=self._patience_s,
            tokens=tokens,
        )

    def _body(self, chat_id: str, agent: str, tokens: int, *, streamed: bool) -> bytes:
        words = " ".join(self._dice.choices(WORDS, k=self._words))
        asked: dict[str, Any] = {
            "model": self._model,
            "messages": [
                {"role": "system", "content": f"You are the {agent}. Say what is asked of you."},
                {"role": "user", "content": f"{chat_id} {words}"},
            ],
            "max_tokens": tokens,
            "stream": streamed,
        }
        return msgspec.json.encode(asked | full_length(streamed=streamed))


class Goodput:
    """Tokens of answers that came whole, by when their clients had them: those of a stream as they
    came, those of an answer in one piece at its end. Of an answer that did not, none count."""

    def __init__(self) -> None:
        self._tokens = Counter[int]()

    async def reads(self, response: aiohttp.ClientResponse, ask: Ask) -> None:
        """Raises Ended: the answer has not its full length."""
        instants = await arrivals(response, ask)
        self.add(instants, ask.tokens)

    def add(self, instants: list[float], tokens: int) -> None:
        """Of one answer: they came in so many pieces."""
        for instant in instants:
            self._tokens[floor(instant * _BINS_PER_S)] += tokens / len(instants)

    def per_s(self, since: float, until: float) -> float:
        """To a tenth of a second."""
        bins = range(floor(since * _BINS_PER_S), floor(until * _BINS_PER_S))
        return sum(self._tokens[each] for each in bins) * _BINS_PER_S / max(1, len(bins))
