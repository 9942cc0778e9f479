"""What becomes of calls at engines that fail some of them, in six ways: `python -m
tests.faults.sixways`, a few seconds for each seed.

Two stand-ins, each behind a proxy that draws, for every call that comes to it, whether and how it
fails. All calls are streams of a tenth of a second; so many are under way at once. A stream that
had begun when it failed ends with an error event: nothing else can be made of it.
"""

import argparse
import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import msgspec

from kairos.proxy.engine_client import STALL_S
from tests.acceptance.chats import Chats
from tests.e2e.served import serving
from tests.faults.faults import Cut, EngineDies, Fault, Noise, Stall, Status, WrongBody
from tests.faults.proxy import Proxy, is_call
from tests.soak.client import End, Outcome, call, session
from tests.support.simulate import standin as standins
from tests.support.simulate.standin import Timing

CALLS, AT_ONCE = 400, 24
TOKENS, STEP_S = 10, 0.010  # of a call
FAILING = 0.15  # of the calls that come to an engine, in all ways together
SILENCE = "silence"
# Those of which there are two, before and amid the answer, take turns by the dice.
WAYS: Mapping[str, tuple[Fault, ...]] = {
    "500": (Status(500),),
    "closed before a byte": (Cut(),),
    "cut midway": (Cut(after_events=2), Cut(after_events=8)),
    "error event": (EngineDies(after_events=0), EngineDies(after_events=4)),
    "garbage": (Noise(), WrongBody(streamed=True)),
    SILENCE: (Stall(), Stall(after_events=4)),
}
DEMANDED: frozenset[str] = frozenset(WAYS)  # what Kairos is to stand up to
ANSWERED, SLOWEST_S = 0.9, 15.0
CLEAN: frozenset[End] = frozenset({"answered", "error", "error in stream"})
_PATIENCE_S = 900.0  # nobody leaves


class Told(msgspec.Struct):
    """Of one seed's calls."""

    outcomes: list[Outcome]
    hurts: Counter[str]  # what was done to calls on their way
    took_s: float

    @property
    def answered(self) -> float:
        return sum(each.end == "answered" for each in self.outcomes) / len(self.outcomes)

    @property
    def slowest_s(self) -> float:
        return max(each.seconds for each in self.outcomes)

    def wrong(self) -> Iterator[str]:
        """What is not as it has to be."""
        names = Counter(each.ask.id for each in self.outcomes)
        if len(names) != CALLS or set(names.values()) != {1}:
            yield f"{names.total()} outcomes of {len(names)} calls, not one each of {CALLS}"
        unclean = Counter(each.end for each in self.outcomes if each.end not in CLEAN)
        if unclean:
            yield f"not a clean outcome: {dict(unclean)}"
        if self.answered < ANSWERED:
            yield f"{self.answered:.1%} are answered"
        if self.slowest_s >= SLOWEST_S:
            yield f"the slowest takes {self.slowest_s:.1f} s"


@asynccontextmanager
async def two_that_fail(ways: Iterable[str], seed: int, **given):
    """A Kairos before two such engines, and their proxies. `given`: see `serving`."""
    timing = Timing(step_s=STEP_S, step_per_seq_s=0.0)
    settings = standins.StandInSettings(model="tiny", max_num_seqs=16, timing=timing)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        engines = [await enter(standins.serve(settings)) for _ in range(2)]
        proxies = [await enter(Proxy(each.url, seed=seed)) for each in engines]
        for number, proxy in enumerate(proxies):
            fail_at_random(proxy, sorted(ways), random.Random(f"{seed} {number}"))
        yield await enter(serving(*(each.url for each in proxies), **given)), proxies


def fail_at_random(proxy: Proxy, ways: Sequence[str], dice: random.Random) -> None:
    """Each way is as likely as any other. Of several rules the first that is meant for a call is
    its, so each has its share of what the earlier ones leave."""
    share, left = FAILING / len(ways), 1.0
    for way in ways:
        faults = WAYS[way]
        for fault in faults:
            chance = share / len(faults)
            proxy.hurt(fault, times=None, when=_drawn(dice, chance / left))
            left -= chance


def _drawn(dice: random.Random, chance: float):
    return lambda request: is_call(request) and dice.random() < chance


async def play(served, proxies, seed: int) -> Told:
    """All calls of a seed, each once."""
    chats = Chats(
        f"sixways-{seed}",
        model="tiny",
        lengths={f"agent-{n}": (TOKENS, TOKENS) for n in range(3)},
        words=8,
        streamed=1.0,
        patience_s=_PATIENCE_S,
    )
    outcomes: list[Outcome] = []

    async def calls(clients: aiohttp.ClientSession) -> None:
        while chats.made < CALLS:
            outcomes.append(await call(clients, served.url, chats.single()))

    began = time.monotonic()
    async with session() as clients, asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(calls(clients))
    hurts = sum((each.hurts for each in proxies), Counter[str]())
    return Told(outcomes, hurts, time.monotonic() - began)


async def _main(seeds: Sequence[int], ways: Sequence[str], stall_s: int) -> None:
    print(f"of {CALLS} calls, {AT_ONCE} at once, {FAILING:.0%} fail: {', '.join(ways)}")
    heads = ("clean", "answered", "p50 s", "p99 s", "slowest s", "all took s")
    print(f"{'seed':4}" + "".join(f"{each:>12}" for each in heads))
    for seed in seeds:
        async with two_that_fail(ways, seed, stall_s=stall_s) as (served, proxies):
            told = await play(served, proxies, seed)
            await served.settled()
        print(f"{seed:4}{_row(told)}")
        ends = Counter(f"{each.end} {each.detail}".strip() for each in told.outcomes)
        for line in (f"{dict(ends)}; done to calls {dict(told.hurts)}", *told.wrong()):
            print(f"      {line}")


def _row(told: Told) -> str:
    clean = sum(each.end in CLEAN for each in told.outcomes) / len(told.outcomes)
    took = sorted(each.seconds for each in told.outcomes)
    p50, p99 = (took[int(share * len(took))] for share in (0.5, 0.99))
    seconds = f"{p50:12.2f}{p99:12.2f}{told.slowest_s:12.2f}{told.took_s:12.1f}"
    return f"{clean:12.1%}{told.answered:12.1%}{seconds}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.sixways")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--stall-s", type=int, default=STALL_S)
    options = parser.parse_args()
    # Stand-ins complain of each proxy that leaves.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    asyncio.run(_main(options.seeds, options.ways, options.stall_s))


if __name__ == "__main__":
    main()
