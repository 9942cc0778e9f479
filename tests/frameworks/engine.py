"""An engine that answers by a script, tool calls included, and knows which run of a flow asks.

A script is a list of rules: the first whose `system` occurs in the system prompt applies. Where it
`calls` a tool that is offered, and no result of that tool is there yet, that is the answer; else it
is one of its `replies`, which one by the call's last words. The question that a flow is asked bears
the mark of its run; a reply goes on with it and some words that only this run has, so that what is
handed on bears it, too, unless replies are to be the same in all runs.
"""

import asyncio
import json
import random
import re
import uuid
import zlib

from aiohttp import web

MARK = re.compile(r"run-[0-9a-f]{6}")
MODEL = "tiny"


class Scripted:
    """`asked`: by request id, the agent that the script takes it for, and the marks it bears."""

    def __init__(self, script, *, same_replies, max_delay_s=0.05):
        self._script, self._same_replies, self._max_delay_s = script, same_replies, max_delay_s
        self.asked = {}
        self.url = ""

    def app(self):
        app = web.Application(client_max_size=32 << 20)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._health)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/responses", self._responses)
        return app

    async def _models(self, _):
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _health(self, _):
        return web.Response()

    async def _chat(self, request):
        body = await request.json()
        said, call = await self._answer(request, body, body["messages"])
        return await _send(request, body, *_chat(said, call))

    async def _responses(self, request):
        body = await request.json()
        items = body["input"]
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        said, call = await self._answer(request, body, items)
        return await _send(request, body, *_response(said, call))

    async def _answer(self, request, body, messages):
        """What is said, or the tool call that is made instead."""
        await asyncio.sleep(random.random() * self._max_delay_s)
        system = _system(body, messages)
        rule = next(rule for rule in self._script if rule["system"] in system)
        marks = set(MARK.findall(json.dumps(body)))
        self.asked[request.headers["X-Request-Id"]] = rule["agent"], marks
        call = rule.get("calls")
        if call and call["name"] in _tools(body) and call["name"] not in _called(messages):
            return "", call
        reply = rule["replies"][zlib.crc32(_last(messages).encode()) % len(rule["replies"])]
        return reply if self._same_replies else _of_its_own(reply, marks), None


def _of_its_own(reply, marks):
    dice = random.Random(f"{reply} {sorted(marks)}")
    words = ["".join(dice.choices("aeinorst", k=dice.randint(3, 9))) for _ in range(12)]
    return f"{reply} ({' '.join(sorted(marks))}: {' '.join(words)})"


def _text(content):
    parts = [content] if isinstance(content, str) else [part["text"] for part in content or ()]
    return "".join(parts)


def _system(body, messages):
    told = [m["content"] for m in messages if m.get("role") in ("system", "developer")]
    return body.get("instructions") or _text(told[0] if told else messages[0]["content"])


def _last(messages):
    return MARK.sub("", next(_text(m["content"]) for m in reversed(messages) if m.get("content")))


def _tools(body):
    return {tool.get("name") or tool["function"]["name"] for tool in body.get("tools") or ()}


def _called(messages):
    """Names of the tools of which there are results."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    names = {call["id"]: call["function"]["name"] for call in calls}
    names |= {m["call_id"]: m["name"] for m in messages if m.get("type") == "function_call"}
    results = (
        m.get("tool_call_id") or m["call_id"]
        for m in messages
        if m.get("role") == "tool" or m.get("type") == "function_call_output"
    )
    return {names[each] for each in results if each in names}


def _chat(said, call):
    """The answer whole, and in events."""
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": 0, "model": MODEL}
    message = {"role": "assistant", "content": None if call else said}
    if call:
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        made = {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
        message["tool_calls"] = [made]
    finish = "tool_calls" if call else "stop"
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    whole = head | {"object": "chat.completion", "choices": [choice], "usage": usage}

    def chunk(delta, finish=None):
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return head | {"object": "chat.completion.chunk", "choices": choices}

    pieces = [{"content": word} for word in re.findall(r"\s*\S+", said)]
    if call:
        pieces = [{"tool_calls": [{"index": 0, **message["tool_calls"][0]}]}]
    events = [chunk({"role": "assistant", "content": ""}), *map(chunk, pieces), chunk({}, finish)]
    return whole, [*(b"data: " + json.dumps(each).encode() for each in events), b"data: [DONE]"]


def _response(said, call):
    part = {"type": "output_text", "text": said, "annotations": [], "logprobs": []}
    item = {"type": "message", "id": f"msg_{uuid.uuid4().hex}", "role": "assistant"}
    item |= {"status": "completed", "content": [part]}
    if call:
        item = {"type": "function_call", "id": f"fc_{uuid.uuid4().hex}", "status": "completed"}
        item |= {"call_id": f"call_{uuid.uuid4().hex}", "name": call["name"]}
        item |= {"arguments": json.dumps(call["arguments"])}
    begun = {"id": f"resp_{uuid.uuid4().hex}", "object": "response", "created_at": 0}
    begun |= {"model": MODEL, "status": "in_progress", "output": [], "usage": None}
    begun |= {"tool_choice": "auto", "tools": [], "parallel_tool_calls": True}
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    usage |= {"input_tokens_details": {"cached_tokens": 0}}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}}
    whole = begun | {"status": "completed", "output": [item], "usage": usage}
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    started = item | ({"arguments": ""} if call else {"content": []}) | {"status": "in_progress"}
    events = [
        ("created", {"response": begun}),
        ("output_item.added", {"output_index": 0, "item": started}),
    ]
    if call:
        done = {"item_id": item["id"], "output_index": 0, "arguments": item["arguments"]}
        events.append(("function_call_arguments.done", done | {"name": call["name"]}))
    else:
        words = [{"delta": word, "logprobs": []} for word in re.findall(r"\s*\S+", said)]
        events.append(("content_part.added", place | {"part": part | {"text": ""}}))
        events += [("output_text.delta", place | word) for word in words]
        events.append(("output_text.done", place | {"text": said, "logprobs": []}))
        events.append(("content_part.done", place | {"part": part}))
    events += [
        ("output_item.done", {"output_index": 0, "item": item}),
        ("completed", {"response": whole}),
    ]
    return whole, [_event(name, number, fields) for number, (name, fields) in enumerate(events)]


def _event(name, number, fields):
    told = {"type": f"response.{name}", "sequence_number": number, **fields}
    return f"event: {told['type']}\ndata: {json.dumps(told)}".encode()


async def _send(request, body, whole, events):
    if not body.get("stream"):
        return web.json_response(whole)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(event + b"\n\n")
    return response
