"""Batches as an unchanged `openai` client makes them."""

import asyncio
import json
from hashlib import sha256

import openai

from kairos.settings import BatchSettings, KeySettings

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
LIMIT_S = 60


def key(shown, tenant=None, **given):
    """Settings of a key, whose tenant has the same name unless it is given."""
    digest = sha256(shown.encode()).hexdigest()
    return KeySettings(sha256=digest, tenant=tenant or shown, **given)


def client_of(url, key="acme", max_retries=0):
    return openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key=key, max_retries=max_retries, timeout=LIMIT_S
    )


def kept_in(directory, **limits):
    return BatchSettings(directory=str(directory), **limits)


def chat_line(number, **body):
    asked = {"model": "tiny", "max_tokens": 2}
    asked["messages"] = [{"role": "user", "content": f"Document {number}"}]
    line = {"custom_id": f"doc-{number}", "method": "POST", "url": CHAT, "body": asked | body}
    return json.dumps(line)


def lines_of(count, **body):
    return "\n".join(chat_line(number, **body) for number in range(count)).encode()


async def upload(client, content, name="input.jsonl"):
    return await client.files.create(file=(name, content), purpose="batch")


async def begin(client, content, **given):
    """A batch of an input with this content."""
    file = await upload(client, content)
    asked = {"endpoint": CHAT, "completion_window": "24h"} | given
    return await client.batches.create(input_file_id=file.id, **asked)


async def until(client, batch, *states, limit_s=LIMIT_S):
    """The batch, once it is in one of these states."""
    async with asyncio.timeout(limit_s):
        while True:
            batch = await client.batches.retrieve(batch.id)
            if batch.status in states:
                return batch
            await asyncio.sleep(0.05)


async def ended(client, batch, limit_s=LIMIT_S):
    return await until(client, batch, *ENDED, limit_s=limit_s)


async def read(client, file_id):
    """The lines of a file; none, where there is no file."""
    if file_id is None:
        return []
    content = await client.files.content(file_id)
    return [json.loads(line) for line in content.text.splitlines()]
