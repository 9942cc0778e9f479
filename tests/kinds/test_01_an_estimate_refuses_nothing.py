"""Kind 1: an estimate never refuses what an engine may accept."""

import json

import pytest
from aiohttp import web

from tests.kinds.table import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    POOLING,
    RERANK,
    RESPONSES,
    SCORE,
    TRANSCRIPTIONS,
    body,
    whole,
)

LONG = "some words of a text " * 4_000  # 20,000 tokens
KV = 1_000
DATA = "iVBORw0KGgo" * 20_000
JSON, FORM = "application/json", "multipart/form-data; boundary=x"
FILE = (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n%b\r\n--x--\r\n'
)
IMAGE = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}]


def sent(route, **more):
    return route, JSON, json.dumps(body(route, **more)).encode()


ROWS = {
    **{f"long text on {route}": sent(route, text=LONG) for route in (
        CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, MESSAGES, RERANK, SCORE, POOLING
    )},
    "a recording of 500 kB": (TRANSCRIPTIONS, FORM, FILE % (b"\0" * 500_000)),
    "a picture": sent(CHAT, messages=[{"role": "user", "content": IMAGE}]),
    "blanks": sent(CHAT, text=" " * 500_000),
    "another script, in escapes": sent(CHAT, text="привет " * 3_000),
    "ids that the engine cuts": sent(COMPLETIONS, prompt=[7] * 5_000, truncate_prompt_tokens=9),
    "many prompts of few ids": sent(COMPLETIONS, prompt=[[7] * 9] * 500),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
async def test_an_engine_judges_what_it_may_accept(kairos, engine, row):
    route, kind, content = ROWS[row]
    served = await kairos(engine.url, kv_tokens=KV)
    engine.answer = whole
    answer = await served.ask("POST", route, data=content, headers={"Content-Type": kind})
    assert answer.status == 200
    assert [call.path for call in engine.calls] == [route]
    assert engine.calls[0].body == content


@pytest.mark.parametrize("ids", [[7] * 1_001, [[7] * 1_001]], ids=["ids", "ids in a list"])
async def test_what_is_certain_is_refused(kairos, engine, ids):
    served = await kairos(engine.url, kv_tokens=KV)
    engine.answer = whole
    answer = await served.ask("POST", COMPLETIONS, json=body(COMPLETIONS, prompt=ids))
    assert answer.status == (413 if isinstance(ids[0], int) else 200)


async def test_one_short_prompt_says_nothing_of_long_ones(kairos, engine):
    served = await kairos(engine.url, kv_tokens=131_072)

    async def counts_68(_):
        return web.json_response({"object": "x", "usage": {"prompt_tokens": 68}})

    engine.answer = counts_68
    assert (await served.ask("POST", CHAT, json=body(CHAT, "hi"))).status == 200
    assert (await served.ask("POST", CHAT, json=body(CHAT, "x y z " * 12_000))).status == 200
    last = served.facts.records[-1].event
    assert last.prompt_tokens == 68
