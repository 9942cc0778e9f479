"""An engine that answers as quickly as the network takes it: `python -m tests.attacks.flood PORT`.

A call's answer is as many bytes as its prompt says, of events of the kind that its model's answers
have. All else that a pool asks of an engine is answered as vLLM does.
"""

import asyncio
import json
import re
import sys

MODEL = "tiny"
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}],"usage":null}\n\n'
_PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_ASKED = re.compile(rb"flood (\w+) of (\d+)")
_PIECE_BYTES = 1 << 20
_KINDS = {
    b"tokens": _EVENT % b"word ",  # the usual
    b"empty": b"data: {}\n\n",
    b"comments": b":\n\n",
    b"ends": b"\n\n",
    b"words": b'data: {"error":null,"usage":{"prompt_tokens":1}}\n\n',
    b"carriage": b"data: {}\r\n\r\n",
    b"chunks": b":\n\n",  # each of a byte
    b"long": _EVENT % (b"x" * 100_000),
}
_DONE = b"data: [DONE]\n\n"


async def _serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"(?i)content-length: *(\d+)", head)
            body = await reader.readexactly(int(found[1])) if found else b""
            if head.startswith(b"GET /v1/models"):
                models = {"data": [{"id": MODEL, "object": "model", "max_model_len": 100_000}]}
                _answer(writer, json.dumps(models).encode())
            elif head.startswith(b"POST"):
                await _flood(writer, body)
            else:
                _answer(writer, b"vllm:num_requests_running 0\n", b"text/plain")
            await writer.drain()
    except (asyncio.IncompleteReadError, OSError):
        pass
    finally:
        writer.close()


def _answer(writer, body, kind=b"application/json"):
    writer.write(_PLAIN % (kind, len(body), body))


async def _flood(writer, body):
    asked = _ASKED.search(body)
    kind, size = (asked[1], int(asked[2])) if asked else (b"tokens", 1)
    event = _KINDS[kind]
    piece = event * max(1, _PIECE_BYTES // len(event))
    chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
    if kind == b"chunks":
        chunk = b"1\r\n:\r\n1\r\n\n\r\n1\r\n\n\r\n" * (_PIECE_BYTES // 18)
    writer.write(_STREAM)
    first = _KINDS[b"tokens"]
    writer.write(b"%x\r\n%b\r\n" % (len(first), first))
    for _ in range(max(1, size // len(chunk))) if asked else ():
        writer.write(chunk)
        await writer.drain()
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(_DONE), _DONE))


async def main(port):
    server = await asyncio.start_server(_serve, "127.0.0.1", port, limit=64 << 20)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
