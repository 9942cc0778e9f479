"""The stand-in's KV connector: the interface of vLLM's disaggregated prefill, and a cache to fetch.

As with vLLM's NixlConnector, a request whose `kv_transfer_params` have `do_remote_decode` true
leaves its cache in place, and the answer's `kv_transfer_params` say where it is. With these and
`do_remote_prefill` true, another engine fetches the cache instead of computing the prompt. A digest
of the prompt takes the place of the cache, a request over HTTP that of RDMA; so a missing cache, or
one of another prompt, is detected.
"""

from collections import OrderedDict
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from kairos.core import text_digest
from kairos.simulate.standin.bodies import KvTransferParams
from kairos.simulate.standin.delivery import RefusedReply, json_answer
from kairos.simulate.standin.replies import Json

READ_PATH = "/standin/kv"
MAX_KEPT = 10_000  # caches


class KvTransfers:
    """The caches that one engine keeps for others."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._next_block = 0
        self.kept: OrderedDict[int, int] = OrderedDict()  # digest of the prompt, by first block

    def keep(self, prompt: str, tokens: int, url: str) -> Json:
        """The answer's `kv_transfer_params`. `url`: of this engine."""
        first, count = self._next_block, -(-tokens // self._block_tokens)
        self._next_block += count
        self.kept[first] = text_digest(prompt)
        if len(self.kept) > MAX_KEPT:
            self.kept.popitem(last=False)
        place = urlsplit(url)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": place.netloc,
            "remote_block_ids": list(range(first, first + count)),
            "remote_host": place.hostname,
            "remote_port": place.port,
        }

    async def fetch(self, params: KvTransferParams, prompt: str) -> None:
        """The cache of a prompt, from where it lies.

        Raises:
            RefusedReply: it is not there.
        """
        try:
            place = f"http://{params.remote_host}:{params.remote_port}{READ_PATH}"
            async with (
                aiohttp.ClientSession() as session,
                session.post(place, json={"blocks": params.remote_block_ids}) as answer,
            ):
                found = await answer.json() if answer.status == 200 else None
        except (aiohttp.ClientError, OSError):
            found = None
        if found != {"prompt": text_digest(prompt)}:
            raise RefusedReply(500, "KV load failed: the remote blocks are not there.")

    async def read(self, request: web.Request) -> web.Response:
        """Another engine reads a cache, which is free then."""
        blocks = (await request.json()).get("blocks") or [-1]
        prompt = self.kept.pop(blocks[0], None)
        if prompt is None:
            raise RefusedReply(404, "There are no such blocks.")
        return json_answer({"prompt": prompt})
