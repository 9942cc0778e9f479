"""What is done to engines under load."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.faults.faults import (
    Cut,
    Delay,
    Drip,
    Fault,
    HangUp,
    Noise,
    Stall,
    Status,
    Stop,
    WrongBody,
)
from tests.soak.engine import Engine

Blow = Callable[[Engine, random.Random], Awaitable[None]]


async def _crash(engine: Engine, dice: random.Random) -> None:
    await engine.crash()
    await asyncio.sleep(dice.uniform(0.2, 4))
    await engine.start()


async def _freeze(engine: Engine, dice: random.Random) -> None:
    engine.freeze()
    await asyncio.sleep(dice.uniform(1, 8))
    engine.thaw()


async def _hang(engine: Engine, dice: random.Random) -> None:
    """Calls get no further, and all that an operator would look at is well."""
    place = dice.choice([Stall(), Stall(after_bytes=200), Stall(after_events=4)])
    await _all_for_a_while(engine, place, dice.uniform(2, 8))


async def _slow(engine: Engine, dice: random.Random) -> None:
    await _all_for_a_while(engine, Delay(dice.uniform(0.3, 2)), dice.uniform(2, 8))


async def _accept_slowly(engine: Engine, dice: random.Random) -> None:
    engine.proxy.close_idle()
    engine.proxy.accept_delay_s = dice.uniform(0.2, 2)
    await asyncio.sleep(dice.uniform(2, 6))
    engine.proxy.accept_delay_s = 0.0


async def _refuse(engine: Engine, dice: random.Random) -> None:
    await engine.proxy.refuse()
    await asyncio.sleep(dice.uniform(0.2, 3))
    await engine.proxy.listen()


async def _close_idle(engine: Engine, dice: random.Random) -> None:
    for _ in range(dice.randint(1, 10)):
        engine.proxy.close_idle()
        await asyncio.sleep(0.1)


async def _drip(engine: Engine, dice: random.Random) -> None:
    engine.proxy.hurt(Drip(bytes_per_s=dice.choice([1.0, 300.0])), times=dice.randint(1, 2))


async def _cut(engine: Engine, dice: random.Random) -> None:
    places = [
        Cut(),
        Cut(after_bytes=dice.randint(1, 400)),
        Cut(after_bytes=dice.randint(400, 4_000)),
        Cut(after_events=dice.randint(1, 20)),
        Stop(after_events=dice.randint(1, 8)),
    ]
    engine.proxy.hurt(dice.choice(places), times=dice.randint(1, 6))


async def _answer_wrongly(engine: Engine, dice: random.Random) -> None:
    what = dice.choice([Noise(), WrongBody(), WrongBody(streamed=True)])
    engine.proxy.hurt(what, times=dice.randint(1, 4))


async def _answer_errors(engine: Engine, dice: random.Random) -> None:
    status = dice.choice([Status(500), Status(503), Status(503, retry_after_s=1)])
    engine.proxy.hurt(status, times=dice.randint(1, 6))


async def _hang_up(engine: Engine, dice: random.Random) -> None:
    engine.proxy.hurt(HangUp(), times=dice.randint(1, 10))


async def _all_for_a_while(engine: Engine, fault: Fault, seconds: float) -> None:
    rule = engine.proxy.hurt(fault, times=None)
    await asyncio.sleep(seconds)
    engine.proxy.heal(rule)


BLOWS: dict[str, Blow] = {
    "crash": _crash,
    "freeze": _freeze,
    "hang": _hang,
    "slow": _slow,
    "accept slowly": _accept_slowly,
    "refuse": _refuse,
    "close idle": _close_idle,
    "drip": _drip,
    "cut": _cut,
    "answer wrongly": _answer_wrongly,
    "answer errors": _answer_errors,
    "hang up": _hang_up,
}


async def torment(engine: Engine, dice: random.Random, dealt: Counter[str]) -> None:
    """One blow after another, in an order of the dice's, each kind before any comes again."""
    while True:
        for name in dice.sample(sorted(BLOWS), len(BLOWS)):
            await asyncio.sleep(dice.uniform(0.5, 4))
            dealt[name] += 1
            await BLOWS[name](engine, dice)
