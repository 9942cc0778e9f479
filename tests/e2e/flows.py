"""Flows as clients put and invoke them."""

import json

from aiohttp import web

from kairos.settings import FlowSettings

REPORTS = """
flow: reports
operators:
  doc: {kind: input}
  summary:
    kind: llm
    prompt: "Summarise: {{ doc.text }}"
    max_tokens: 20
    on_cut: keep
  verdict:
    kind: llm
    prompt: "Judge: {{ summary }}"
    max_tokens: 5
    on_cut: keep
outputs:
  verdict: verdict
  summary: summary
"""
MANY = """
flow: many
operators:
  row: {kind: input}
  each:
    kind: map
    over: row.items
    body:
      say: {kind: llm, prompt: "Say {{ item }}"}
    result: say
outputs: {each: each}
"""


def kept_in(directory, **given):
    return FlowSettings(directory=str(directory), **given)


def answers(engine, reply=lambda prompt: f"<{prompt}>"):
    """The engine answers chats, in a function of the last message."""

    async def answer(request):
        body = json.loads(await request.read())
        return web.json_response(chat(reply(body["messages"][-1]["content"])))

    engine.answer = answer
    return engine


def prompts(engine):
    """What it was asked, in order; but for beginnings of prompts that were computed ahead."""
    bodies = [json.loads(call.body) for call in engine.calls]
    asked = [body for body in bodies if not body.get("continue_final_message")]
    return [body["messages"][-1]["content"] for body in asked]


def chat(text, **given):
    return {
        "id": "x",
        "object": "chat.completion",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
    } | given


async def put(served, source=REPORTS, name="reports", **given):
    headers = {"content-type": "application/yaml"} | given.pop("headers", {})
    return await served.ask("PUT", f"/v1/flows/{name}", data=source, headers=headers, **given)


async def invoke(served, inputs, name="reports", headers=None, **given):
    body = {"inputs": inputs} | given
    return await served.ask("POST", f"/v1/flows/{name}/invoke", json=body, headers=headers)


def events(body):
    """Of a stream: name and data; comments are left out."""
    found = []
    for block in body.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        fields = dict(line.split(": ", 1) for line in lines)
        if fields:
            data = fields["data"]
            value = data if data == "[DONE]" else json.loads(data)
            found.append((fields.get("event"), value))
    return found
