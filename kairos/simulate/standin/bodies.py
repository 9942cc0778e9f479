"""Fields of a request that the stand-in reads.

One type serves all routes, since they share most fields; other fields are ignored, as by vLLM.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec

Failure = Literal["unavailable", "hang", "cut", "stall", "error"]

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class StandInPrompt(NamedTuple):
    system: str
    rest: str
    tools: Mapping[str, int] = {}  # that are offered, and how many results of each there are


class ContentPart(msgspec.Struct):
    """Hold a part of a message. Anthropic's API has calls of tools and results among them."""

    text: str = ""
    type: str | None = None
    id: str | None = None
    name: str | None = None
    tool_use_id: str | None = None
    content: "str | list[ContentPart] | None" = None

    @property
    def said(self) -> str:
        """Return its text, or a result's."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.text or self.content or ""


class Function(msgspec.Struct):
    name: str


class Tool(msgspec.Struct):
    """A tool, as in chats (with `function`) or in the Responses API. Others have no name."""

    function: Function | None = None
    name: str | None = None


class ToolCall(msgspec.Struct):
    id: str
    function: Function


class StandInMessage(msgspec.Struct):
    """A message of a chat, or an item of the Responses API's input.

    Items may also be calls of tools (with `call_id` and `name`) and their results.
    """

    role: str | None = None
    content: str | list[ContentPart] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    call_id: str | None = None
    name: str | None = None
    output: str | list[ContentPart] | None = None

    @property
    def text(self) -> str:
        said = self.output if self.content is None else self.content
        if isinstance(said, list):
            return "\n".join(part.said for part in said)
        return said or ""

    @property
    def parts(self) -> list[ContentPart]:
        return self.content if isinstance(self.content, list) else []


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class KvTransferParams(msgspec.Struct):
    """Place where a prompt's cache is wanted, or is stored (vLLM)."""

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_engine_id: str | None = None
    remote_block_ids: list[int] | None = None
    remote_host: str | None = None
    remote_port: int | None = None


class StandInBody(msgspec.Struct):
    model: str
    messages: list[StandInMessage] | None = None
    prompt: str | list[str | int] | None = None
    input: str | list[StandInMessage] | None = None
    instructions: str | None = None
    system: str | list[ContentPart] | None = None
    tools: list[Tool] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: AtLeastOne | None = None
    max_completion_tokens: AtLeastOne | None = None
    max_output_tokens: AtLeastOne | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    ignore_eos: bool = False
    n: Annotated[int, msgspec.Meta(ge=1, le=1)] | None = None
    seed: int | None = None
    kv_transfer_params: KvTransferParams | None = None
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


class RerankBody(msgspec.Struct):
    model: str
    query: str
    documents: Annotated[list[str], msgspec.Meta(min_length=1, max_length=2048)]
    top_n: int = 0  # 0: all


class TokenizeBody(msgspec.Struct):
    model: str
    prompt: str


def chat_prompt(body: StandInBody) -> StandInPrompt:
    """This and its siblings raise ValueError: what the route needs is missing."""
    if not body.messages:
        raise ValueError("Field required: messages")
    return _prompt(body, body.messages)


def completion_prompt(body: StandInBody) -> StandInPrompt:
    match body.prompt:
        case None | []:
            raise ValueError("Field required: prompt")
        case str(text) | [str(text)]:
            return StandInPrompt("", text)
        case ids if all(isinstance(number, int) for number in ids):
            # Four characters count as a token.
            return StandInPrompt("", "".join(f"{number:<4}" for number in ids))
    raise ValueError("the stand-in takes one prompt per request")


def responses_prompt(body: StandInBody) -> StandInPrompt:
    match body.input:
        case None | "" | []:
            raise ValueError("Field required: input")
        case str(text):
            return _prompt(body, [StandInMessage(role="user", content=text)])
        case items:
            return _prompt(body, items)


def messages_prompt(body: StandInBody) -> StandInPrompt:
    """Do as `chat_prompt` does; an answer's limit is required too."""
    if not body.messages or not body.max_tokens:
        raise ValueError(f"Field required: {'max_tokens' if body.messages else 'messages'}")
    return _prompt(body, body.messages)


def _prompt(body: StandInBody, messages: Sequence[StandInMessage]) -> StandInPrompt:
    system = [body.instructions] if body.instructions else []
    if body.system:
        system.append(StandInMessage(content=body.system).text)
    system += [m.text for m in messages if m.role in ("system", "developer")]
    rest = [m.text for m in messages if m.role not in ("system", "developer")]
    names = (tool.name or (tool.function and tool.function.name) for tool in body.tools or ())
    results = _results(messages)
    tools = {name: results[name] for name in names if name}
    return StandInPrompt("\n".join(system), "\n".join(rest), tools)


def _results(messages: Sequence[StandInMessage]) -> Counter[str]:
    """Count the results that there are, by name of the tool."""
    names: dict[str | None, str] = {}
    results = set[str | None]()
    for message in messages:
        names |= {call.id: call.function.name for call in message.tool_calls or ()}
        names |= {part.id: part.name for part in message.parts if part.id and part.name}
        results |= {part.tool_use_id for part in message.parts if part.tool_use_id}
        if message.name is not None and message.call_id is not None:
            names[message.call_id] = message.name
        elif message.role == "tool" or message.output is not None:
            results.add(message.tool_call_id or message.call_id)
    return Counter(names[each] for each in results if each in names)
