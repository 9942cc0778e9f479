"""A partition's side of who makes a call: questions and answers go to the coordinator in groups."""

import asyncio
from typing import Any

import msgspec

from kairos.workflows.run.result_store import CachedValue, Found

_GROUP = 256
_LINGER_S = 0.05  # a message between actors costs as much as a call that it is about
_AGAIN_S = 0.05  # until it is asked again about a call that another partition makes

_decode = msgspec.json.Decoder().decode


class PartitionClaims:
    """`follow` runs for as long as the partition does. All else is called in its loop."""

    def __init__(self, coordinator: Any, partition: int) -> None:
        self._coordinator, self._partition = coordinator, partition
        self._epoch = 0
        self._asked: list[tuple[int, str, Found]] = []
        self._told: list[tuple[str, bytes | None]] = []
        self._held: dict[int, list[str]] = {}  # by call, signatures without an answer yet
        self._by_signature: dict[str, int] = {}
        self._has_work = asyncio.Event()

    def own(self, epoch: int) -> None:
        self._epoch = epoch

    def ask(self, call: int, signature: str, found: Found) -> None:
        self._asked.append((call, signature, found))
        self._has_work.set()

    def record_answer(self, signature: str, encoded: bytes) -> None:
        if self._by_signature.pop(signature, None) is not None:
            self._told.append((signature, encoded))
            self._has_work.set()

    def finish_call(self, call: int) -> None:
        for signature in self._held.pop(call, ()):
            if self._by_signature.pop(signature, None) is not None:
                self._told.append((signature, None))
                self._has_work.set()

    async def follow(self) -> None:
        """Ask and pass on until cancelled, after what comes within a moment."""
        while True:
            await self._has_work.wait()
            await asyncio.sleep(_LINGER_S)
            self._has_work.clear()
            while len(self._asked) >= _GROUP or len(self._told) >= _GROUP:
                await self._exchange()
            await self._exchange()
            if self._asked or self._told:  # they came while it waited
                self._has_work.set()

    async def settle(self) -> None:
        """Pass on all answers."""
        while self._told:
            await self._exchange()

    async def _exchange(self) -> None:
        group, self._asked = self._asked[:_GROUP], self._asked[_GROUP:]
        told, self._told = self._told[:_GROUP], self._told[_GROUP:]
        wanted = [signature for _, signature, _ in group]
        claims = await self._coordinator.claim.remote(self._partition, self._epoch, wanted, told)
        for (call, signature, found), claim in zip(group, claims, strict=True):
            if claim is True:
                self._held.setdefault(call, []).append(signature)
                self._by_signature[signature] = call
                found(None)
            elif claim is False:
                later = asyncio.get_running_loop().call_later
                later(_AGAIN_S, self.ask, call, signature, found)
            else:
                found(CachedValue(_decode(claim)))
