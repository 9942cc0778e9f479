"""`python -m bench.identity`: what it costs to know who calls.

On one core, in CPU time. In the gateway: of a call whose headers say all; of one of 20 messages and
20 KB that says nothing, and goes on with one of many conversations that run at the same time; and,
once that is answered, to remember what it was told. In the caller's program: what `kairos_client`
adds to a call. Adds its figures to bench/results.json; takes half a minute.
"""

import os
import statistics
import time
from random import Random

import msgspec
from httpx2 import Request
from rich.console import Console

from bench import report, rows
from bench.report import Figure
from kairos.host import collect_less_often
from kairos.request import Aliases, Caller, Inference, identity_of
from kairos.request.identity.conversation import prompt_of
from kairos_client.context import Identity, Scope, current
from kairos_client.hooks import name_call

WORKFLOWS, TURNS, ROUNDS = 200, 2, 5
MESSAGES, MESSAGE_WORDS, SYSTEM_WORDS, AGENTS = 20, 140, 300, 12
CALLER = Caller("acme")
HEADERS = {
    b"host": b"kairos",
    b"content-type": b"application/json",
    b"user-agent": b"AsyncOpenAI/Python 3.52.0",
    b"x-kairos-workflow-id": b"1f0c8b1f0c8b1f0c8b1f0c8b1f0c8b1f",
    b"x-kairos-app": b"reports",
    b"x-kairos-agent": b"writer",
    b"x-kairos-upstream": b"researcher",
    b"traceparent": b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
}
SDK_HEADERS = {
    "accept": "application/json",
    "authorization": "Bearer none",
    "content-type": "application/json",
    "user-agent": "AsyncOpenAI/Python 3.52.0",
    "x-stainless-async": "async:asyncio",
    "x-stainless-lang": "python",
    "x-stainless-os": "Linux",
    "x-stainless-package-version": "3.52.0",
    "x-stainless-retry-count": "0",
    "x-stainless-runtime": "CPython",
}
SAID = "identity of a call whose headers say it"
ALONE = "identity of a call of 18 messages and 18 KB that says nothing, and follows from nothing"
INFERRED = "identity of a call of 20 messages and 20 KB that says nothing, and goes on"
REMEMBERED = "what such a call was answered, to know by it what follows"
CLIENT = "kairos-client, on a call"
TARGETS_US = {SAID: 40, ALONE: 150, INFERRED: 150, REMEMBERED: None, CLIENT: 30}
SYSTEMS = {"mean": "mean", "p50": "p50", "p99": "p99"}

Taken = dict[str, list[float]]  # us, by name of the figure


class Conversations:
    """Of several agents, each with a prompt of its own; all words are made up."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        letters = "etaoinshrdlucmfwypvbgkjqxz"
        lengths = [self._random.randint(2, 10) for _ in range(5_000)]
        self._known = ["".join(self._random.choices(letters, k=n)) for n in lengths]
        self._systems = [self.words(SYSTEM_WORDS) for _ in range(AGENTS)]

    def words(self, number: int) -> str:
        return " ".join(self._random.choices(self._known, k=number))

    def begin(self) -> list[dict[str, str]]:
        """Such that the last of its turns has `MESSAGES`."""
        messages = [{"role": "system", "content": self._random.choice(self._systems)}]
        for number in range(MESSAGES - 2 * TURNS):
            role = "assistant" if number % 2 else "user"
            messages.append({"role": role, "content": self.words(MESSAGE_WORDS)})
        return messages


def inferred(seed: int) -> Taken:
    made, inference, aliases = Conversations(seed), Inference(), Aliases()
    talks = [made.begin() for _ in range(WORKFLOWS)]
    taken: Taken = {ALONE: [], INFERRED: [], REMEMBERED: []}
    for turn in range(TURNS):
        for number, talk in enumerate(talks):
            talk.append({"role": "user", "content": made.words(MESSAGE_WORDS)})
            body = msgspec.json.encode({"model": "m", "messages": talk})
            reply = made.words(MESSAGE_WORDS)
            answer = msgspec.json.encode({"choices": [{"message": {"content": reply}}]})

            began = time.process_time_ns()
            identity = identity_of({b"host": b"kairos"}, {}, {}, CALLER, aliases)
            asked = inference.infer_fields(identity, prompt_of(body), CALLER.tenant)
            ended = time.process_time_ns()
            assert asked is not None
            inference.remember_answer(asked, f"req-{turn}-{number}", answer, streamed=False)
            remembered = time.process_time_ns()

            assert (identity.workflow_id is None) == (turn == 0), "it is not inferred"
            taken[INFERRED if turn else ALONE].append((ended - began) / 1e3)
            taken[REMEMBERED].append((remembered - ended) / 1e3)
            talk.append({"role": "assistant", "content": reply})
    return taken


def said() -> Taken:
    aliases, taken = Aliases(), []
    for _ in range(WORKFLOWS):
        began = time.process_time_ns()
        identity = identity_of(HEADERS, {}, {}, CALLER, aliases)
        taken.append((time.process_time_ns() - began) / 1e3)
        assert identity.agent == "writer"
    return {SAID: taken}


def in_client() -> Taken:
    os.environ["KAIROS_BASE_URL"] = "http://kairos:8000/v1"
    taken: list[float] = []
    token = current.set(Scope(Identity(workflow="w-1", agent="writer"), None))
    for _ in range(WORKFLOWS):
        request = Request("POST", "http://kairos:8000/v1/chat/completions", headers=SDK_HEADERS)
        began = time.process_time_ns()
        name_call(request.url, request.headers)
        taken.append((time.process_time_ns() - began) / 1e3)
        assert request.headers["x-kairos-agent"] == "writer"
    current.reset(token)
    return {CLIENT: taken}


def measure(console: Console) -> list[Figure]:
    if os.getloadavg()[0] > 1:
        console.print("the machine is busy with something else: figures will be noisy")
    collect_less_often()
    rounds: dict[str, list[list[float]]] = {name: [] for name in TARGETS_US}
    for number in range(ROUNDS):
        for name, taken in (inferred(number) | said() | in_client()).items():
            rounds[name].append(taken)
    return [_figure(name, each) for name, each in rounds.items()]


def _figure(name: str, rounds: list[list[float]]) -> Figure:
    spreads = {
        "mean": report.spread([statistics.mean(taken) for taken in rounds]),
        "p50": report.spread([report.percentile(taken, 50) for taken in rounds]),
        "p99": report.spread([report.percentile(taken, 99) for taken in rounds]),
    }
    value, target = spreads["p50"].median, TARGETS_US[name]
    return Figure(name=name, value=value, unit="us", target=target, detail={**spreads})


def main() -> None:
    console = Console()
    found = measure(console)
    rows.keep(found, "identity")
    report.show(found, console, SYSTEMS)


if __name__ == "__main__":
    main()
