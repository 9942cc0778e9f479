"""What is done to engines under load, in turn: whoever is hurt is well again before the next is."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

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
from tests.soak.turns import Turns

# Ends when the engine is well again.
Blow = Callable[[Engine, random.Random], Awaitable[None]]
_DAWDLES_S = 0.05  # of which an engine that is slow works for a fifth


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


async def _dawdle(engine: Engine, dice: random.Random) -> None:
    """All that it does takes five times as long."""
    loop = asyncio.get_running_loop()
    until = loop.time() + dice.uniform(3, 8)
    try:
        while loop.time() < until:
            engine.freeze()
            await asyncio.sleep(0.8 * _DAWDLES_S)
            engine.thaw()
            await asyncio.sleep(0.2 * _DAWDLES_S)
    finally:
        if engine.is_frozen:
            engine.thaw()


async def _silence(engine: Engine, dice: random.Random) -> None:
    """Single calls get no further, beside others that do."""
    place = dice.choice([Stall(), Stall(after_events=4)])
    await _some_calls(engine, dice, place, dice.randint(1, 2))


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
    fault = Drip(bytes_per_s=dice.choice([1.0, 300.0]))
    await _some_calls(engine, dice, fault, dice.randint(1, 2))


async def _cut(engine: Engine, dice: random.Random) -> None:
    places = [
        Cut(),
        Cut(after_bytes=dice.randint(1, 400)),
        Cut(after_bytes=dice.randint(400, 4_000)),
        Cut(after_events=dice.randint(1, 20)),
        Stop(after_events=dice.randint(1, 8)),
    ]
    await _some_calls(engine, dice, dice.choice(places), dice.randint(1, 6))


async def _answer_wrongly(engine: Engine, dice: random.Random) -> None:
    what = dice.choice([Noise(), WrongBody(), WrongBody(streamed=True)])
    await _some_calls(engine, dice, what, dice.randint(1, 4))


async def _answer_errors(engine: Engine, dice: random.Random) -> None:
    status = dice.choice([Status(500), Status(503), Status(503, retry_after_s=1)])
    await _some_calls(engine, dice, status, dice.randint(1, 6))


async def _hang_up(engine: Engine, dice: random.Random) -> None:
    await _some_calls(engine, dice, HangUp(), dice.randint(1, 10))


async def _some_calls(engine: Engine, dice: random.Random, fault: Fault, times: int) -> None:
    """The next, as far as they come soon."""
    rule = engine.proxy.hurt(fault, times=times)
    await asyncio.sleep(dice.uniform(1, 3))
    engine.proxy.heal(rule)


async def _all_for_a_while(engine: Engine, fault: Fault, seconds: float) -> None:
    rule = engine.proxy.hurt(fault, times=None)
    await asyncio.sleep(seconds)
    engine.proxy.heal(rule)


BLOWS: dict[str, Blow] = {
    "crash": _crash,
    "freeze": _freeze,
    "hang": _hang,
    "slow": _slow,
    "dawdle": _dawdle,
    "silence": _silence,
    "accept slowly": _accept_slowly,
    "refuse": _refuse,
    "close idle": _close_idle,
    "drip": _drip,
    "cut": _cut,
    "answer wrongly": _answer_wrongly,
    "answer errors": _answer_errors,
    "hang up": _hang_up,
}


async def torment(
    engines: Sequence[Engine], turns: Turns, dice: random.Random, dealt: Counter[str]
) -> None:
    """One blow after another, in an order of the dice's, each kind before any comes again."""
    while True:
        for name in dice.sample(sorted(BLOWS), len(BLOWS)):
            await asyncio.sleep(dice.uniform(0.3, 2))
            number = turns.draw(dice)
            dealt[name] += 1
            with turns.away(number):
                await BLOWS[name](engines[number], dice)
