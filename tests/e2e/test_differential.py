"""What OpenAI's SDK sends, sent to an engine and through Kairos: status, body and events must be
the same, but for what is drawn or read from a clock."""

import base64
import gzip
import io
import re

import aiohttp
import httpx2
import openai
import pytest

LIMIT_S = 60
ASK = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Why is it so?"},
]
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a topic up.",
        "parameters": {"type": "object", "properties": {"topic": {"type": "string"}}},
        "strict": True,
    },
}
CALLED = [
    *ASK,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call-1",
                "type": "function",
                "function": {"name": "look_up", "arguments": '{"topic": "é \\"x\\""}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call-1", "content": "See volume 7."},
]
PICTURE = "data:image/png;base64," + base64.b64encode(bytes(4 << 20)).decode()
SEEN = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
        ],
    }
]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "a", "strict": True, "schema": {"type": "object", "properties": {}}},
}
MANY = {
    "frequency_penalty": 0.1,
    "logit_bias": {"42": -1},
    "max_completion_tokens": 12,
    "metadata": {"run": "r-1"},
    "presence_penalty": 0.2,
    "prompt_cache_key": "k-1",
    "reasoning_effort": "low",
    "safety_identifier": "u-1",
    "seed": 7,
    "service_tier": "auto",
    "stop": ["\n\n"],
    "store": False,
    "temperature": 0.5,
    "top_p": 0.9,
    "user": "u-1",
}
CHAT = {
    "plain": {"messages": ASK},
    "with many options": {"messages": ASK, **MANY},
    "with tools": {"messages": CALLED, "tools": [TOOL], "tool_choice": "auto"},
    "with parallel tool calls": {"messages": ASK, "tools": [TOOL], "parallel_tool_calls": True},
    "with a schema": {"messages": ASK, "response_format": SCHEMA},
    "with a picture": {"messages": SEEN, "max_tokens": 8},
    "of another model": {"messages": ASK, "model": "none"},
    "of an option that makes no sense": {"messages": ASK, "max_tokens": "many"},
}
STREAMS = {
    "": {"stream": True},
    ", with usage": {"stream": True, "stream_options": {"include_usage": True}},
    ", without usage": {"stream": True, "stream_options": {"include_usage": False}},
}
RESPONSES = {
    "plain": {"input": "Why is it so?"},
    "with instructions": {"input": ASK[1:], "instructions": "You are terse."},
    "streamed": {"input": "Why is it so?", "stream": True},
    "with few tokens": {"input": "Why is it so?", "max_output_tokens": 3},
    "with few tokens, streamed": {"input": "Why?", "max_output_tokens": 3, "stream": True},
}


def recorded():
    """Every shape, by what it is: as the SDK writes it, its headers included."""
    requests = []

    def note(request):
        requests.append(request)
        return httpx2.Response(500)

    http = httpx2.Client(transport=httpx2.MockTransport(note))
    client = openai.OpenAI(
        base_url="http://engine/v1", api_key="none", http_client=http, max_retries=0
    )
    calls = {f"chat {what}": (client.chat.completions, given) for what, given in CHAT.items()}
    calls |= {
        f"chat streamed {what}{how}": (client.chat.completions, given | stream)
        for what, given in CHAT.items()
        for how, stream in STREAMS.items()
    }
    calls |= {f"response {what}": (client.responses, given) for what, given in RESPONSES.items()}
    calls |= {
        "completion": (client.completions, {"prompt": "Once"}),
        "completion, streamed": (client.completions, {"prompt": "Once", "stream": True}),
        "embedding": (client.embeddings, {"input": ["One", "two"]}),
        "embedding as floats": (client.embeddings, {"input": "One", "encoding_format": "float"}),
    }
    for resource, given in calls.values():
        with pytest.raises(openai.InternalServerError):
            resource.create(**{"model": "tiny"} | given)
    return dict(zip(calls, requests, strict=True))


SHAPES = recorded()
REFUSED = {shape: 404 for shape in SHAPES if "another model" in shape}
REFUSED |= {shape: 400 for shape in SHAPES if "makes no sense" in shape}
_DRAWN = re.compile(rb'"(created|created_at|completed_at)":\s*\d+(?:\.\d+)?')


async def send(url, request, *, body=None, **headers):
    """Status, what kind of content, and the content."""
    own = {name: request.headers[name] for name in ("content-type", "accept", "user-agent")}
    own |= {k: v for k, v in request.headers.items() if k.startswith("x-stainless")}
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as http,
        http.post(
            url + request.url.path,
            data=io.BytesIO(request.content if body is None else body),
            headers=own | {"X-Request-Id": "same"} | headers,
        ) as response,
    ):
        content = await response.read()
        return response.status, response.content_type, _DRAWN.sub(rb'"\1":0', content)


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_answer_is_the_engines_own(kairos, standin, shape):
    served = await kairos(standin.url)
    request = SHAPES[shape]

    direct, through = await send(standin.url, request), await send(served.url, request)

    if shape in REFUSED:  # by Kairos itself, which must read it, in words of its own
        assert through[:2] == direct[:2] == (REFUSED[shape], "application/json")
    else:
        assert through == direct


@pytest.mark.parametrize("shape", ["chat plain", "chat streamed plain", "chat with a picture"])
async def test_the_answer_to_a_body_that_came_compressed_is_the_same(kairos, standin, shape):
    served = await kairos(standin.url)
    request = SHAPES[shape]
    packed = gzip.compress(request.content)

    through = await send(served.url, request, body=packed, **{"Content-Encoding": "gzip"})

    assert through == await send(standin.url, request)
