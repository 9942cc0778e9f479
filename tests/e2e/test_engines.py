"""Engines as child processes. `_parent` is a process that starts one and may be killed."""

import asyncio
import os
import select
import signal
import sys

import aiohttp
import pytest

from kairos.demo.engines import Kind, start_engines
from kairos.errors import SetupError

LIMIT_S = 20.0
PARENT = """
import asyncio
from kairos.demo.engines import start_engines

async def main():
    async with start_engines("sim", 1) as urls:
        print(urls[0], flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def reply(url: str, model: str) -> str:
    body = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=body) as response,
    ):
        assert response.status == 200
        return (await response.json())["choices"][0]["message"]["content"]


async def process_of(url: str) -> int:
    """The pid of the engine: the stand-in's own process listens."""
    port = int(url.rpartition(":")[2])
    script = f"import os; print(os.getpid()); {port}"
    raise NotImplementedError(script)
