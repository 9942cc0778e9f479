"""Format of the stand-in's replies on each of the four text routes: the same as vLLM's.

A stream is `begin`, one `token` for each token (the last with its finish reason), then `end`. If a
reply calls a tool, its text is the arguments.
"""

import time
from typing import Any, Literal, Protocol

import msgspec

DONE = b"data: [DONE]\n\n"
FinishReason = Literal["stop", "length", "tool_calls"]
Json = dict[str, Any]


class StandInUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int

    def named(self, prompt: str, completion: str) -> Json:
        total = self.prompt_tokens + self.completion_tokens
        return {
            prompt: self.prompt_tokens, completion: self.completion_tokens, "total_tokens": total,
        }  # fmt: skip


class StandInReply(Protocol):
    def whole(self, text: str, finish: FinishReason, usage: StandInUsage) -> Json: ...

    def begin(self) -> list[bytes]: ...

    def token(self, text: str, finish: FinishReason | None) -> bytes: ...

    def end(self, text: str, finish: FinishReason, usage: StandInUsage, tell: bool) -> list[bytes]:
        """Return the end of a stream. `tell`: the client requested usage."""


class ChatReply:
    def __init__(self, request_id: str, model: str, tool: str | None) -> None:
        self._head = {"id": f"chatcmpl-{request_id}", "created": int(time.time()), "model": model}
        self._tool, self._call = tool, f"call_{request_id}"

    def whole(self, text: str, finish: FinishReason, usage: StandInUsage) -> Json:
        said: Json = {"content": text}
        if self._tool is not None:
            said = {"content": None, "tool_calls": [self._begun() | self._arguments(text)]}
        choice = _choice(finish, message={"role": "assistant", **said})
        return self._object("chat.completion", [choice]) | {"usage": _usage(usage)}

    def begin(self) -> list[bytes]:
        chunks = [self._chunk(_choice(None, delta={"role": "assistant", "content": ""}))]
        if self._tool is not None:
            delta = {"tool_calls": [{"index": 0, **self._begun(), **self._arguments("")}]}
            chunks.append(self._chunk(_choice(None, delta=delta)))
        return chunks

    def token(self, text: str, finish: FinishReason | None) -> bytes:
        delta: Json = {"content": text}
        if self._tool is not None:
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        return self._chunk(_choice(finish, delta=delta))

    def end(self, text: str, finish: FinishReason, usage: StandInUsage, tell: bool) -> list[bytes]:  # noqa: ARG002
        return [self._chunk(usage=_usage(usage)), DONE] if tell else [DONE]

    def _begun(self) -> Json:
        return {"id": self._call, "type": "function"}

    def _arguments(self, text: str) -> Json:
        return {"function": {"name": self._tool, "arguments": text}}

    def _object(self, name: str, choices: list[Json]) -> Json:
        return {**self._head, "object": name, "choices": choices}

    def _chunk(self, *choices: Json, **more: Json) -> bytes:
        return event(self._object("chat.completion.chunk", list(choices)) | more)


class CompletionReply:
    def __init__(self, request_id: str, model: str, tool: str | None) -> None:  # noqa: ARG002
        self._head = {
            "id": f"cmpl-{request_id}", "object": "text_completion",
            "created": int(time.time()), "model": model,
        }  # fmt: skip

    def whole(self, text: str, finish: FinishReason, usage: StandInUsage) -> Json:
        return {**self._head, "choices": [_choice(finish, text=text)], "usage": _usage(usage)}

    def begin(self) -> list[bytes]:
        return []

    def token(self, text: str, finish: FinishReason | None) -> bytes:
        return event({**self._head, "choices": [_choice(finish, text=text)]})

    def end(self, text: str, finish: FinishReason, usage: StandInUsage, tell: bool) -> list[bytes]:  # noqa: ARG002
        last = event({**self._head, "choices": [], "usage": _usage(usage)})
        return [last, DONE] if tell else [DONE]


class ResponsesReply:
    """Typed and numbered events without a `[DONE]`; usage is always included."""

    def __init__(self, request_id: str, model: str, tool: str | None) -> None:
        self._id, self._tool = request_id, tool
        self._number = 0
        self._head: Json = {
            "id": f"resp_{request_id}", "object": "response", "created_at": int(time.time()),
            "model": model, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        }  # fmt: skip

    def whole(self, text: str, finish: FinishReason, usage: StandInUsage) -> Json:
        cut = finish == "length"
        return self._head | {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._item("completed", text)],
            "usage": usage.named("input_tokens", "output_tokens"),
        }

    def begin(self) -> list[bytes]:
        response = {**self._head, "status": "in_progress", "output": []}
        events = [
            self._event("created", response=response),
            self._event("output_item.added", output_index=0, item=self._item("in_progress")),
        ]
        if self._tool is None:
            events.append(self._event("content_part.added", **self._place, part=_text_part("")))
        return events

    def token(self, text: str, finish: FinishReason | None) -> bytes:  # noqa: ARG002
        if self._tool is None:
            return self._event("output_text.delta", **self._place, delta=text, logprobs=[])
        return self._event("function_call_arguments.delta", **self._place, delta=text)

    def end(self, text: str, finish: FinishReason, usage: StandInUsage, tell: bool) -> list[bytes]:  # noqa: ARG002
        response = self.whole(text, finish, usage)
        item = response["output"][0]
        return [
            *self._done(text),
            self._event("output_item.done", output_index=0, item=item),
            self._event("completed", response=response),  # as vLLM: cut at its limit, too
        ]

    def _done(self, text: str) -> list[bytes]:
        if self._tool is not None:
            told = {"arguments": text, "name": self._tool}
            return [self._event("function_call_arguments.done", **self._place, **told)]
        return [
            self._event("output_text.done", **self._place, text=text, logprobs=[]),
            self._event("content_part.done", **self._place, part=_text_part(text)),
        ]

    @property
    def _place(self) -> Json:
        if self._tool is not None:
            return {"item_id": f"fc_{self._id}", "output_index": 0}
        return {"item_id": f"msg_{self._id}", "output_index": 0, "content_index": 0}

    def _item(self, status: str, *texts: str) -> Json:
        if self._tool is not None:
            return {
                "type": "function_call", "id": f"fc_{self._id}", "call_id": f"call_{self._id}",
                "name": self._tool, "arguments": "".join(texts), "status": status,
            }  # fmt: skip
        return {
            "type": "message", "id": f"msg_{self._id}", "role": "assistant", "status": status,
            "content": [_text_part(text) for text in texts],
        }  # fmt: skip

    def _event(self, name: str, /, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return _named(f"response.{name}", sequence_number=number, **fields)


class MessagesReply:
    """Word a reply as Anthropic's API has it, with named events and no cached tokens."""

    def __init__(self, request_id: str, model: str, tool: str | None) -> None:
        self._tool, self._call = tool, f"toolu_{request_id}"
        self._head: Json = {
            "id": f"msg_{request_id}", "type": "message", "role": "assistant", "model": model,
        }  # fmt: skip
        self.prompt_tokens = 0  # which a stream says first

    def whole(self, text: str, finish: FinishReason, usage: StandInUsage) -> Json:
        block: Json = {"type": "text", "text": text}
        if self._tool is not None:
            block = self._block() | {"input": msgspec.json.decode(text)}
        return self._head | {
            "content": [block],
            "stop_reason": _STOP_REASONS[finish],
            "stop_sequence": None,
            "usage": _counts(usage),
        }

    def begin(self) -> list[bytes]:
        usage = {"input_tokens": self.prompt_tokens, "output_tokens": 0}
        message = self._head | {"content": [], "stop_reason": None, "usage": usage}
        return [
            _named("message_start", message=message),
            _named("content_block_start", index=0, content_block=self._block()),
        ]

    def token(self, text: str, finish: FinishReason | None) -> bytes:  # noqa: ARG002
        delta = {"type": "text_delta", "text": text}
        if self._tool is not None:
            delta = {"type": "input_json_delta", "partial_json": text}
        return _named("content_block_delta", index=0, delta=delta)

    def end(self, text: str, finish: FinishReason, usage: StandInUsage, tell: bool) -> list[bytes]:  # noqa: ARG002
        ended = {"stop_reason": _STOP_REASONS[finish], "stop_sequence": None}
        return [
            _named("content_block_stop", index=0),
            _named("message_delta", delta=ended, usage=_counts(usage)),
            _named("message_stop"),
        ]

    def _block(self) -> Json:
        if self._tool is None:
            return {"type": "text", "text": ""}
        return {"type": "tool_use", "id": self._call, "name": self._tool, "input": {}}


_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def _counts(usage: StandInUsage) -> Json:
    return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}


def _named(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + event({"type": kind, **fields})


def event(body: Json) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _usage(usage: StandInUsage) -> Json:
    return usage.named("prompt_tokens", "completion_tokens")


def _choice(finish: FinishReason | None, **content: Any) -> Json:
    return {"index": 0, **content, "logprobs": None, "finish_reason": finish}


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": []}
