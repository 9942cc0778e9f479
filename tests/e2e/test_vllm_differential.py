"""What OpenAI's SDK sends, sent to real vLLM and through Kairos: status, body and events must be
the same, but for what is drawn or read from a clock.

How a stream is cut into events is vLLM's choice of the moment, so what goes on in the next event is
joined before it is compared. One difference is known: vLLM tells `system_fingerprint` in a stream's
last chunk, which is that of the usage, for which Kairos asks where the client did not.
"""

import json
import re

import pytest

from tests.e2e.test_differential import SHAPES, send

pytestmark = pytest.mark.vllm

# What vLLM refuses, of a text model that embeds nothing, and without a parser of tool calls.
# Answers by a schema fail on the CPU, or do not.
REFUSED = re.compile("picture|with tools|parallel|another|sense|embedding")
UNCERTAIN = re.compile("schema")
DRAWN = re.compile(r'"(id|item_id|created|created_at|completed_at)":\s*("[^"]*"|[\d.]+)')


def certain(request):
    """The body, asking for a short answer that is the same each time."""
    body = json.loads(request.content)
    if "embeddings" not in str(request.url):
        limit = "max_output_tokens" if "responses" in str(request.url) else "max_tokens"
        if not {"max_tokens", "max_completion_tokens", "max_output_tokens"} & body.keys():
            body[limit] = 8
        body |= {"temperature": 0, "seed": 1}
    return json.dumps(body).encode()


def plain(answer):
    """Status, kind and content, without what is drawn; the events of a stream joined."""
    status, kind, content = answer
    text = DRAWN.sub(r'"\1":0', content.decode())
    return status, kind, joined(text) if kind == "text/event-stream" else json.loads(text)


def joined(text):
    """The events, each with its words; one that goes on where the last ended is one with it."""
    told = []
    for line in text.splitlines():
        if not line.startswith("data: "):
            continue
        event = line.removeprefix("data: ")
        if event != "[DONE]":
            event = json.loads(event)
            event.pop("sequence_number", None)
            event.pop("system_fingerprint", None)
        words = taken(event)
        if words and told and told[-1][0] == event:
            words = told.pop()[1] + words
        told.append((event, words))
    return told


def taken(event):
    """Take the words out that the event brings."""
    if event == "[DONE]":
        return ""
    if isinstance(event.get("delta"), str):
        return event.pop("delta")
    for choice in event.get("choices", ()):
        if "text" in choice:
            return choice.pop("text")
        delta = choice["delta"]
        if delta.get("content"):
            return delta.pop("content")
    return ""


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_answer_is_vllms_own(kairos, vllm, shape):
    served = await kairos(vllm[0])
    request = SHAPES[shape]
    body = certain(request)

    await send(vllm[0], request, body=body)  # so that its prompt is in the cache for both
    direct = plain(await send(vllm[0], request, body=body))
    through = plain(await send(served.url, request, body=body))

    if not UNCERTAIN.search(shape):
        assert (direct[0] != 200) == bool(REFUSED.search(shape))
    # By Kairos itself, which must read it, or says which engine has no such route.
    if any(word in shape for word in ("another", "sense", "embedding")):
        assert through[:2] == direct[:2]
    else:
        assert through == direct
