"""What the clients ask: named calls of workflows, calls that say nothing of themselves, and
conversations that go on."""

from collections.abc import Callable
from random import Random
from typing import Protocol

import msgspec

from bench.upstream import MODEL

WORDS = b"a word of the prompt "
PROMPT_BYTES = 2048
WORKFLOW_CALLS = 5
IDENTITY = (
    b"x-kairos-workflow-id: workflow-%08d\r\nx-kairos-app: bench\r\nx-kairos-agent: writer\r\n"
    b"x-kairos-upstream: researcher\r\n"
)
# A conversation: 16 messages and 16 KB when it is first seen, 24 and 24 KB in its fifth call. In
# the mean of its calls it has 20 messages and 20 KB.
FIRST_MESSAGES = 16
TURNS = 5
MESSAGE_WORDS = 155
CHAT = "/v1/chat/completions"


class Client(Protocol):
    """One client, that makes a call after another."""

    def ask(self, number: int) -> bytes:
        """The next request. No other call of the same load has this number."""

    def hear(self, answer: bytes) -> None:
        """What was answered to it."""


def http(method: bytes, path: bytes, body: bytes = b"", headers: bytes = b"") -> bytes:
    return (
        b"%b %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n%b"
        b"content-length: %d\r\n\r\n%b" % (method, path, headers, len(body), body)
    )


def chat(number: int, *, stream: bool) -> bytes:
    """A named call with a prompt of its own, so that no cache of prompts answers for all, and with
    an agent's headers, so that Kairos has its whole work to do."""
    text = b"%08d " % number + WORDS * (PROMPT_BYTES // len(WORDS))
    body = b'{"model":"%b","max_tokens":16,"stream":%b,"messages":[{"role":"user","content":"%b"}]}'
    return http(b"POST", CHAT.encode(), body % (
        MODEL.encode(), b"true" if stream else b"false", text
    ), IDENTITY % (number // WORKFLOW_CALLS))  # fmt: skip


class Named:
    """Workflows of five calls that say who makes them."""

    def __init__(self, *, stream: bool = False) -> None:
        self._stream = stream

    def ask(self, number: int) -> bytes:
        return chat(number, stream=self._stream)

    def hear(self, answer: bytes) -> None:
        """Nothing follows from it."""


class Words:
    """Text that nobody else says. Drawn anew in each process: text that an earlier round has said
    would be known."""

    def __init__(self) -> None:
        self._random = Random()
        letters = "etaoinshrdlucmfwypvbgkjqxz"
        lengths = [self._random.randint(2, 10) for _ in range(5_000)]
        self._known = ["".join(self._random.choices(letters, k=length)) for length in lengths]

    def say(self, number: int) -> str:
        return " ".join(self._random.choices(self._known, k=number))


class Anonymous:
    """Calls of 2 KiB that say nothing of themselves: each has a prompt of its own."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def ask(self, number: int) -> bytes:  # noqa: ARG002 - the words are its own
        text = self._words.say(PROMPT_BYTES // 6)[:PROMPT_BYTES]
        return _anonymous([{"role": "user", "content": text}])

    def hear(self, answer: bytes) -> None:
        """Nothing follows from it."""


class Conversation:
    """One conversation after another, of a client that says nothing of itself: each call has what
    was said before, what was answered to it, and a new message."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._said: list[dict[str, str]] = []
        self._turn = TURNS

    def ask(self, number: int) -> bytes:  # noqa: ARG002 - the words are its own
        if self._turn == TURNS:
            self._begin()
        self._turn += 1
        self._say("user")
        return _anonymous(self._said)

    def hear(self, answer: bytes) -> None:
        told = msgspec.json.decode(answer, type=_Answer).choices[0].message
        self._said.append({"role": "assistant", "content": told.content})

    def _begin(self) -> None:
        self._turn = 0
        self._said = []
        self._say("system")
        for number in range(FIRST_MESSAGES - 2):
            self._say("assistant" if number % 2 else "user")

    def _say(self, role: str) -> None:
        self._said.append({"role": role, "content": self._words.say(MESSAGE_WORDS)})


class _Message(msgspec.Struct):
    content: str


class _Choice(msgspec.Struct):
    message: _Message


class _Answer(msgspec.Struct):
    choices: list[_Choice]


def _anonymous(messages: list[dict[str, str]]) -> bytes:
    body = {"model": MODEL, "max_tokens": 16, "stream": False, "messages": messages}
    return http(b"POST", CHAT.encode(), msgspec.json.encode(body))


NewClient = Callable[[], Client]


def named() -> NewClient:
    return Named


def named_streams() -> NewClient:
    return lambda: Named(stream=True)


def anonymous() -> NewClient:
    words = Words()
    return lambda: Anonymous(words)


def conversations() -> NewClient:
    words = Words()
    return lambda: Conversation(words)
