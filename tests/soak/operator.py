"""Who runs Kairos, and has it read other settings while calls run."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.soak.turns import Turns
from tests.support.processes import Process

ANSWERS = ("the settings were read again", "the settings stay as they are")
MAX_BODY_BYTES = (4 << 20, 8 << 20)  # above all that clients send
_WRONG = (b"max_waiting = none", b"[[engine]", b"max_waiting = 0", b"", b"\xff")
_HEARD_S = 30.0  # until Kairos has said what came of it, however slow this machine is


class Operator:
    """Takes an engine out of service and puts it back, writes what is wrong, changes a limit."""

    def __init__(self, file: Path, engines: Sequence[str], kairos: Process, turns: Turns) -> None:
        """`engines`: lines of the settings file, one table each."""
        self._file, self._engines, self._kairos, self._turns = file, engines, kairos, turns
        self.told = Counter[str]()
        self.unheard = 0
        self._write(engines)

    async def work(self, dice: random.Random) -> None:
        """One change after another, in an order of the dice's."""
        changes = [self._exchange, self._err, self._limit]
        while True:
            for change in dice.sample(changes, len(changes)):
                await asyncio.sleep(dice.uniform(1, 6))
                await change(dice)

    async def restore(self) -> None:
        """All engines are in the settings."""
        self._write(self._engines)
        await self._hang_up("restored")

    async def _exchange(self, dice: random.Random) -> None:
        out = self._turns.draw(dice)
        with self._turns.away(out):
            self._write([each for n, each in enumerate(self._engines) if n != out])
            await self._hang_up("an engine less")
            await asyncio.sleep(dice.uniform(0.1, 5))
            self._write(self._engines)
            await self._hang_up("an engine more")

    async def _err(self, dice: random.Random) -> None:
        self._file.write_bytes(dice.choice(_WRONG))
        await self._hang_up("wrong")

    async def _limit(self, dice: random.Random) -> None:
        self._write(self._engines, f"max_body_bytes = {dice.choice(MAX_BODY_BYTES)}")
        await self._hang_up("another limit")

    def _write(self, engines: Sequence[str], *lines: str) -> None:
        self._file.write_text("\n".join([*lines, *engines]))

    async def _hang_up(self, why: str) -> None:
        self.told[why] += 1
        before = self._answers()
        os.kill(self._kairos.pid, signal.SIGHUP)
        try:
            async with asyncio.timeout(_HEARD_S):
                while self._answers() == before and self._kairos.runs:
                    await asyncio.sleep(0.1)
        except TimeoutError:
            self.unheard += 1

    def _answers(self) -> int:
        said = self._kairos.said
        return sum(said.count(each) for each in ANSWERS)
