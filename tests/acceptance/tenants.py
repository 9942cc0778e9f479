"""Two tenants on engines that one alone could fill: `python -m tests.acceptance.tenants`, a minute;
`--vllm`: on two real vLLM, three minutes.

Tenant a makes few long calls, tenant b many short ones, each caller the next as one ends. It is
measured how long a's calls take alone; beside b, if both have keys of one tenant (no shares); and
if each is a tenant. On stand-ins a call of a takes a second: a fair half of the pool is enough.
"""

import argparse
import asyncio
import hashlib
import statistics
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from kairos.settings import KeySettings
from tests.acceptance.instance import Instance
from tests.e2e.served import serving
from tests.support.simulate import standin as standins
from tests.support.simulate.standin import Timing

SLOTS = 8  # of each engine
LONG, SHORT = 100, 10  # tokens
MANY = 120  # callers of b, of each engine; of a half as many as an engine has slots


@asynccontextmanager
async def stand_in():
    timing = Timing(step_s=0.01, step_per_seq_s=0.0)
    settings = standins.StandInSettings(model="tiny", max_num_seqs=SLOTS, timing=timing)
    async with standins.serve(settings) as engine:
        yield [engine.url]


@asynccontextmanager
async def two_vllm():
    with tempfile.TemporaryDirectory(prefix="kairos-") as scratch:
        async with AsyncExitStack() as stack:
            instances = [
                Instance(Path(scratch), n, model="tiny", max_num_seqs=SLOTS, scratch=scratch)
                for n in (1, 2)
            ]
            for each in instances:
                stack.enter_context(each.process)
            await asyncio.gather(*(each.until_ready() for each in instances))
            yield [each.url for each in instances]


def key(name, tenant):
    return KeySettings(sha256=hashlib.sha256(name.encode()).hexdigest(), tenant=tenant)


async def play(urls, seconds, *, with_b, apart):
    """How long calls took, in seconds, by who made them; of those under way, until now."""
    keys = key("a", "a"), key("b", "b" if apart else "a")
    took = {"a": [], "b": []}
    async with serving(*urls, max_num_seqs=SLOTS, key=keys) as served:
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as callers:
            for _ in range(SLOTS // 2 * len(urls)):
                callers.create_task(calls(served, took["a"], until, "a", LONG))
            for _ in range(MANY * len(urls) if with_b else 0):
                callers.create_task(calls(served, took["b"], until, "b", SHORT))
    return took


async def calls(served, took, until, name, tokens):
    headers = {"Authorization": f"Bearer {name}", "X-Kairos-App": name, "X-Kairos-Agent": name}
    while (began := time.monotonic()) < until:
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + until - began):
                answer = await served.chat(headers=headers, max_tokens=tokens, min_tokens=tokens)
                assert answer.status == 200, answer.status
        except TimeoutError:
            pass  # it took as long at least
        took.append(time.monotonic() - began)


async def main(pool, seconds):
    async with pool() as urls:
        for what, options in (
            ("a alone", {"with_b": False, "apart": True}),
            ("a beside b, one tenant", {"with_b": True, "apart": False}),
            ("a beside b, two tenants", {"with_b": True, "apart": True}),
        ):
            took = await play(urls, seconds, **options)
            means = [
                f"{name}: {len(found):6} calls, mean {statistics.fmean(found):6.2f} s"
                for name, found in took.items()
                if found
            ]
            print(f"{what:26}", *means, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.tenants", description=__doc__)
    parser.add_argument("--vllm", action="store_true", help="on two real vLLM")
    parser.add_argument("--seconds", type=float, default=20.0, help="each (20)")
    told = parser.parse_args()
    asyncio.run(main(two_vllm if told.vllm else stand_in, told.seconds))
