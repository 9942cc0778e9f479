"""An engine that embeds and ranks, as a process that a test kills. Answers are a function of what
is asked; each text that it embedded, and each passage that it ranked, is a line of its log."""

import asyncio
import json
import sys
from pathlib import Path

from aiohttp import web

from tests.support.simulate.standin import vector

MODEL = "made-up"


class Embedder:
    def __init__(self, log, delay_s):
        self._log, self._delay_s = log, delay_s

    def app(self):
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/embeddings", self._embeddings)
        app.router.add_post("/v1/rerank", self._rerank)
        return app

    async def _models(self, request):
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _embeddings(self, request):
        texts = (await request.json())["input"]
        await asyncio.sleep(self._delay_s)
        self._done(texts)
        data = [{"index": at, "embedding": vector(text)} for at, text in enumerate(texts)]
        return web.json_response({"object": "list", "data": data, "model": MODEL})

    async def _rerank(self, request):
        asked = await request.json()
        passages, words = asked["documents"], set(asked["query"].split())
        await asyncio.sleep(self._delay_s)
        self._done([f"{asked['query']}|{passage}" for passage in passages])
        results = [
            {"index": at, "relevance_score": len(words & set(passage.split())) / len(words)}
            for at, passage in enumerate(passages)
        ]
        return web.json_response({"results": results})

    def _done(self, items):
        with self._log.open("a") as log:
            log.writelines(json.dumps(item) + "\n" for item in items)


def done_by(log):
    """What such a process had embedded and ranked."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


if __name__ == "__main__":
    port, log, delay_s = int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    web.run_app(
        Embedder(log, delay_s).app(), host="127.0.0.1", port=port, print=None, access_log=None
    )
