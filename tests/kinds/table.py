"""Share routes with a body each, and engines that fail in a way, between the tables."""

import asyncio

from aiohttp import web

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EMBEDDINGS, MESSAGES, RERANK = "/v1/embeddings", "/v1/messages", "/v1/rerank"
SCORE, POOLING, SPEECH = "/score", "/pooling", "/v1/audio/speech"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
NEVER_S = 3_600  # a time that nothing may wait for: a test would see that


def body(route, text="Hello", **more):
    """A request that engines accept on that route."""
    field = {
        CHAT: {"messages": [{"role": "user", "content": text}]},
        MESSAGES: {"messages": [{"role": "user", "content": text}], "max_tokens": 9},
        COMPLETIONS: {"prompt": text},
        RERANK: {"query": text, "documents": [text]},
        SCORE: {"text_1": text, "text_2": text},
    }.get(route, {"input": text})
    return {"model": "tiny"} | field | more


async def whole(_):
    return web.json_response({"object": "whole", "usage": {"prompt_tokens": 3}})


def says(status, **headers):
    async def answer(_):
        error = {"message": "mine", "type": "made up", "param": None, "code": None}
        return web.json_response({"error": error}, status=status, headers=headers)

    return answer


async def drops(request):
    request.transport.abort()
    return web.Response()


async def talks_no_http(request):
    request.transport.write(b"\x00\x01 no HTTP\r\n\r\n")
    request.transport.close()
    return web.Response()


async def never(_):
    await asyncio.Event().wait()


async def never_after_the_head(request):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await asyncio.Event().wait()
