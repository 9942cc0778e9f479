"""What the stand-in reads of a request. One type serves all routes, since they share most fields;
a field that is not here is ignored, as vLLM does."""

from typing import Annotated, Literal

import msgspec

Failure = Literal["unavailable", "hang", "cut", "stall", "error"]
Prompt = tuple[str, str]  # the system prompt, and the rest

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class Part(msgspec.Struct):
    text: str = ""


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class Body(msgspec.Struct):
    model: str
    messages: list[Message] | None = None
    prompt: str | list[str | int] | None = None
    input: str | list[Message] | None = None
    instructions: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: AtLeastOne | None = None
    max_completion_tokens: AtLeastOne | None = None
    max_output_tokens: AtLeastOne | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    ignore_eos: bool = False
    n: Annotated[int, msgspec.Meta(ge=1, le=1)] | None = None
    seed: int | None = None
    fail: Failure | None = None  # the stand-in's own: how this call is to go wrong

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def asked_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_output_tokens or self.max_tokens


class EmbeddingsBody(msgspec.Struct):
    model: str
    input: str | Annotated[list[str | int | list[int]], msgspec.Meta(min_length=1, max_length=2048)]
    encoding_format: Literal["float", "base64"] = "float"

    @property
    def texts(self) -> list[str]:
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], int):
            return [str(self.input)]  # the ids of one text
        return [text if isinstance(text, str) else str(text) for text in self.input]


class TokenizeBody(msgspec.Struct):
    model: str
    prompt: str


def chat_prompt(body: Body) -> Prompt:
    """This and its siblings raise ValueError: what the route needs is missing."""
    if not body.messages:
        raise ValueError("Field required: messages")
    return _split(body.messages)


def completion_prompt(body: Body) -> Prompt:
    match body.prompt:
        case None | []:
            raise ValueError("Field required: prompt")
        case str(text) | [str(text)]:
            return "", text
        case ids if all(isinstance(number, int) for number in ids):
            return "", "".join(f"{number:<4}" for number in ids)  # four characters count as a token
    raise ValueError("the stand-in takes one prompt per request")


def responses_prompt(body: Body) -> Prompt:
    if not body.input:
        raise ValueError("Field required: input")
    instructions = body.instructions or ""
    if isinstance(body.input, str):
        return instructions, body.input
    system, rest = _split(body.input)
    return f"{instructions}\n{system}", rest


def _split(messages: list[Message]) -> Prompt:
    system = [m.text for m in messages if m.role in ("system", "developer")]
    rest = [m.text for m in messages if m.role not in ("system", "developer")]
    return "\n".join(system), "\n".join(rest)
