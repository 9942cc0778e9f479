"""`python -m bench.reading`: what it costs to read calls and answers, step by step.

On one core, in CPU time, of one process without HTTP: the body, who makes the call, what is
inferred, and what is remembered of the answer. Mean of the calls, since some do what others put
off; median of the rounds.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.table import Table

from bench.identity import AGENTS, CALLER, HEADERS, Conversations
from kairos.host import collect_less_often
from kairos.request import Aliases, Inference, identity_of, read_body

CALLS, ROUNDS, AT_ONCE = 200, 5, 8
WORDS_2_KIB, WORDS_OF_REPLY = 300, 70
ANONYMOUS = {b"host": b"kairos", b"content-type": b"application/json"}
STEPS = "read_body", "identity_of", "inference.add", "remember"


Answers = Callable[[str], tuple[bytes, bool]]  # the bytes of one, and whether it is a stream


class Steps:
    """CPU time, us, by step."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = {step: [] for step in STEPS}

    @contextmanager
    def time(self, step: str) -> Iterator[None]:
        began = time.process_time_ns()
        yield
        self.taken[step].append((time.process_time_ns() - began) / 1e3)


class Case:
    """Calls one after the other, of which some are in flight at a time."""

    def __init__(self, headers: dict[bytes, bytes], answer: "Answers") -> None:
        self.steps, self.inference, self.aliases = Steps(), Inference(), Aliases()
        self._headers, self._answer, self._number = headers, answer, 0
        self._in_flight: list[Callable[[], None]] = []

    def call(self, body: dict[str, object], reply: str) -> None:
        time, content = self.steps.time, msgspec.json.encode(body)
        with time("read_body"):
            read = read_body(content, chat=True, streams_usage=True)
        with time("identity_of"):
            identity = identity_of(self._headers, read.told, {}, CALLER, self.aliases)
        with time("inference.add"):
            asked = self.inference.infer_fields(identity, read.prompt, CALLER.tenant)
        answer, streamed = self._answer(reply)
        request_id = f"req-{self._number}"
        self._number += 1

        def remember() -> None:
            assert asked is not None
            with time("remember"):
                self.inference.remember_answer(asked, request_id, answer, streamed=streamed)

        self._in_flight.append(remember)
        if len(self._in_flight) >= AT_ONCE:
            self._in_flight.pop(0)()


def whole(reply: str) -> tuple[bytes, bool]:
    choice = {"index": 0, "message": {"role": "assistant", "content": reply}}
    return msgspec.json.encode({"id": "chatcmpl-1", "choices": [choice]}), False


def streamed(chunks: int) -> Callable[[str], tuple[bytes, bool]]:
    def answer(reply: str) -> tuple[bytes, bool]:
        size = -(-len(reply) // chunks)
        deltas = [reply[at : at + size] for at in range(0, len(reply), size)]
        events = [
            msgspec.json.encode(
                {
                    "id": "chatcmpl-0123456789abcdef",
                    "object": "chat.completion.chunk",
                    "created": 1_700_000_000,
                    "model": "m",
                    "choices": [{"index": 0, "delta": {"content": each}, "finish_reason": None}],
                }
            )
            for each in deltas
        ]
        return b"".join(b"data: " + each + b"\n\n" for each in events) + b"data: [DONE]\n\n", True

    return answer


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def short(case: Case, made: Conversations, **more: object) -> None:
    systems = [made.words(30) for _ in range(AGENTS)]
    for number in range(CALLS):
        prompt = [
            said("system", systems[number % AGENTS]),
            said("user", made.words(WORDS_2_KIB - 30)),
        ]
        case.call({"model": "m", "messages": prompt, **more}, made.words(WORDS_OF_REPLY))


def going_on(case: Case, made: Conversations) -> None:
    """Each is asked twice; the second call is the one that counts."""
    talks = [made.begin() for _ in range(CALLS)]
    for _ in range(2):
        case.steps = Steps()
        for talk in talks:
            reply = made.words(140)
            talk.append(said("user", made.words(140)))
            case.call({"model": "m", "messages": talk}, reply)
            talk.append(said("assistant", reply))


def with_tools(case: Case, made: Conversations) -> None:
    tools = [
        {
            "type": "function",
            "function": {"name": f"tool_{n}", "description": made.words(40), "parameters": {}},
        }
        for n in range(8)
    ]
    short(case, made, tools=tools)


CASES: dict[str, tuple[dict[bytes, bytes], Answers, Callable[..., None]]] = {
    "named, 2 KiB": (HEADERS, whole, short),
    "anonymous, 2 KiB": (ANONYMOUS, whole, short),
    "anonymous, 2 KiB, 8 tools": (ANONYMOUS, whole, with_tools),
    "anonymous, goes on, 20 KB": (ANONYMOUS, whole, going_on),
    "named, goes on, 20 KB": (HEADERS, whole, going_on),
    "named, stream of 16": (HEADERS, streamed(16), short),
    "named, stream of 256": (HEADERS, streamed(256), short),
    "anonymous, stream of 16": (ANONYMOUS, streamed(16), short),
    "anonymous, stream of 256": (ANONYMOUS, streamed(256), short),
}


def measure() -> dict[str, dict[str, float]]:
    cases = {name: Case(headers, answer) for name, (headers, answer, _) in CASES.items()}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
    for number in range(-1, ROUNDS):
        for name, (_, _, calls) in CASES.items():
            cases[name].steps = Steps()
            calls(cases[name], Conversations(number))
            taken = cases[name].steps.taken
            if number >= 0:  # the first finds tables that nobody has touched
                rounds[name].append({step: statistics.mean(us) for step, us in taken.items()})
    return {
        name: {step: statistics.median(each[step] for each in found) for step in STEPS}
        for name, found in rounds.items()
    }


def main() -> None:
    collect_less_often()
    table = Table("us of CPU a call", *STEPS, "together")
    for name, found in measure().items():
        together = sum(found.values())
        table.add_row(name, *(f"{us:.1f}" for us in [*found.values(), together]))
    Console().print(table)


if __name__ == "__main__":
    main()
