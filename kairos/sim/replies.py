"""How the stand-in words a reply on each of the three text routes: shaped as vLLM's.

A stream is `begin`, one `token` for each token (the last with its finish reason), then `end`.
"""

import time
from typing import Any, Literal, Protocol

import msgspec

DONE = b"data: [DONE]\n\n"
FinishReason = Literal["stop", "length"]
Json = dict[str, Any]


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int

    def named(self, prompt: str, completion: str) -> Json:
        total = self.prompt_tokens + self.completion_tokens
        return {
            prompt: self.prompt_tokens, completion: self.completion_tokens, "total_tokens": total,
        }  # fmt: skip


class Reply(Protocol):
    def whole(self, text: str, finish: FinishReason, usage: Usage) -> Json: ...

    def begin(self) -> list[bytes]: ...

    def token(self, text: str, finish: FinishReason | None) -> bytes: ...

    def end(self, text: str, finish: FinishReason, usage: Usage, tell: bool) -> list[bytes]:
        """`tell`: the client asked for usage."""


class ChatReply:
    def __init__(self, request_id: str, model: str) -> None:
        self._head = {"id": f"chatcmpl-{request_id}", "created": int(time.time()), "model": model}

    def whole(self, text: str, finish: FinishReason, usage: Usage) -> Json:
        choice = _choice(finish, message={"role": "assistant", "content": text})
        return self._object("chat.completion", [choice]) | {"usage": _usage(usage)}

    def begin(self) -> list[bytes]:
        return [self._chunk(_choice(None, delta={"role": "assistant", "content": ""}))]

    def token(self, text: str, finish: FinishReason | None) -> bytes:
        return self._chunk(_choice(finish, delta={"content": text}))

    def end(self, text: str, finish: FinishReason, usage: Usage, tell: bool) -> list[bytes]:  # noqa: ARG002
        return [self._chunk(usage=_usage(usage)), DONE] if tell else [DONE]

    def _object(self, name: str, choices: list[Json]) -> Json:
        return {**self._head, "object": name, "choices": choices}

    def _chunk(self, *choices: Json, **more: Json) -> bytes:
        return event(self._object("chat.completion.chunk", list(choices)) | more)


class CompletionReply:
    def __init__(self, request_id: str, model: str) -> None:
        self._head = {
            "id": f"cmpl-{request_id}", "object": "text_completion",
            "created": int(time.time()), "model": model,
        }  # fmt: skip

    def whole(self, text: str, finish: FinishReason, usage: Usage) -> Json:
        return {**self._head, "choices": [_choice(finish, text=text)], "usage": _usage(usage)}

    def begin(self) -> list[bytes]:
        return []

    def token(self, text: str, finish: FinishReason | None) -> bytes:
        return event({**self._head, "choices": [_choice(finish, text=text)]})

    def end(self, text: str, finish: FinishReason, usage: Usage, tell: bool) -> list[bytes]:  # noqa: ARG002
        last = event({**self._head, "choices": [], "usage": _usage(usage)})
        return [last, DONE] if tell else [DONE]


class ResponsesReply:
    """Typed and numbered events without a `[DONE]`; usage is always told."""

    def __init__(self, request_id: str, model: str) -> None:
        self._item = f"msg_{request_id}"
        self._number = 0
        self._head: Json = {
            "id": f"resp_{request_id}", "object": "response", "created_at": int(time.time()),
            "model": model, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        }  # fmt: skip

    def whole(self, text: str, finish: FinishReason, usage: Usage) -> Json:
        cut = finish == "length"
        return self._head | {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._message("completed", text)],
            "usage": usage.named("input_tokens", "output_tokens"),
        }

    def begin(self) -> list[bytes]:
        response = {**self._head, "status": "in_progress", "output": []}
        item = self._message("in_progress")
        return [
            self._event("created", response=response),
            self._event("output_item.added", output_index=0, item=item),
            self._event("content_part.added", **self._place, part=_text_part("")),
        ]

    def token(self, text: str, finish: FinishReason | None) -> bytes:  # noqa: ARG002
        return self._event("output_text.delta", **self._place, delta=text, logprobs=[])

    def end(self, text: str, finish: FinishReason, usage: Usage, tell: bool) -> list[bytes]:  # noqa: ARG002
        response = self.whole(text, finish, usage)
        item = response["output"][0]
        return [
            self._event("output_text.done", **self._place, text=text, logprobs=[]),
            self._event("content_part.done", **self._place, part=_text_part(text)),
            self._event("output_item.done", output_index=0, item=item),
            self._event("completed", response=response),  # as vLLM: cut at its limit, too
        ]

    @property
    def _place(self) -> Json:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _message(self, status: str, *texts: str) -> Json:
        content = [_text_part(text) for text in texts]
        return {
            "type": "message", "id": self._item, "role": "assistant", "status": status,
            "content": content,
        }  # fmt: skip

    def _event(self, name: str, **fields: Any) -> bytes:
        kind = f"response.{name}"
        body = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {kind}\n".encode() + event(body)


def event(body: Json) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _usage(usage: Usage) -> Json:
    return usage.named("prompt_tokens", "completion_tokens")


def _choice(finish: FinishReason | None, **content: Any) -> Json:
    return {"index": 0, **content, "logprobs": None, "finish_reason": finish}


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": []}
