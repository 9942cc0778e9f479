"""Continuous batching, as the stand-in models it.

Up to `max_num_seqs` sequences run; the others wait, first come, first served. Time passes in steps:

    step = step_s + step_per_seq_s * running + new prompt tokens / prefill_tokens_per_s

and each step gives every running sequence one token. A sequence is admitted when its whole need,
prompt and reply, fits in addition to the running sequences; so `kv_tokens` makes calls wait,
and never preempts. Not modelled: KV blocks, preemption, prefix caching, chunked prefill (a long
prompt delays everyone's step), priorities, attention cost that grows with the context, speculation.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

import msgspec


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    step_s: float = 0.010
    step_per_seq_s: float = 0.0002
    prefill_tokens_per_s: float = 10_000.0


INSTANT = Timing(step_s=0.0, step_per_seq_s=0.0, prefill_tokens_per_s=math.inf)


class BatchedCall:
    """A sequence in the engine. Iterate over it for its tokens, as the steps produce them."""

    def __init__(self, prompt_tokens: int, reply: Sequence[str], fetched_tokens: int = 0) -> None:
        """Create it. `fetched_tokens` of the prompt need not be computed."""
        self.prompt_tokens = prompt_tokens
        self.new_tokens = prompt_tokens - fetched_tokens
        self.reply = reply
        self.generated = 0
        self.taken = 0  # by who iterates
        self._ready: asyncio.Queue[str] = asyncio.Queue()

    @property
    def peak_tokens(self) -> int:
        return self.prompt_tokens + len(self.reply)

    @property
    def done(self) -> bool:
        return self.generated == len(self.reply)

    def step(self) -> None:
        self._ready.put_nowait(self.reply[self.generated])
        self.generated += 1

    async def __aiter__(self) -> AsyncIterator[str]:
        for _ in self.reply:
            token = await self._ready.get()
            self.taken += 1
            yield token


class Batch:
    """Waiting and running sequences. Nothing advances unless `run` is running."""

    def __init__(self, *, max_num_seqs: int, kv_tokens: int, timing: Timing) -> None:
        self.max_num_seqs = max_num_seqs
        self.kv_tokens = kv_tokens
        self.waiting: deque[BatchedCall] = deque()
        self.running: list[BatchedCall] = []
        self._timing = timing
        self._arrived = asyncio.Event()
        self._resumed = asyncio.Event()
        self._resumed.set()

    @property
    def used_tokens(self) -> int:
        return sum(call.prompt_tokens + call.generated for call in self.running)

    def pause(self) -> None:
        """Freeze everything: calls are accepted, and none gets a token before `resume`."""
        self._resumed.clear()

    def resume(self) -> None:
        self._resumed.set()

    @contextmanager
    def call(
        self, prompt_tokens: int, reply: Sequence[str], fetched_tokens: int = 0
    ) -> Iterator[BatchedCall]:
        """Queue a call; leaving the block early aborts it. It must fit an idle engine."""
        call = BatchedCall(prompt_tokens, reply, fetched_tokens)
        assert reply
        assert call.peak_tokens <= self.kv_tokens
        self.waiting.append(call)
        self._arrived.set()
        try:
            yield call
        finally:
            if call in self.waiting:
                self.waiting.remove(call)
            if call in self.running:
                self.running.remove(call)

    async def run(self) -> None:
        """Step until cancelled."""
        while True:
            await self._resumed.wait()
            prefilled = self._admit()
            if not self.running:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            await asyncio.sleep(self._step_s(prefilled))
            await self._resumed.wait()
            for call in self.running:
                call.step()
            self.running = [call for call in self.running if not call.done]

    def _admit(self) -> int:
        """Start what fits, in order. Returns the prompt tokens that the next step computes."""
        free = self.kv_tokens - sum(call.peak_tokens for call in self.running)
        prefilled = 0
        while self.waiting and len(self.running) < self.max_num_seqs:
            if self.waiting[0].peak_tokens > free:
                break  # nor may a later, smaller call overtake it
            call = self.waiting.popleft()
            self.running.append(call)
            free -= call.peak_tokens
            prefilled += call.new_tokens
        return prefilled

    def _step_s(self, prefilled: int) -> float:
        timing = self._timing
        decode_s = timing.step_s + timing.step_per_seq_s * len(self.running)
        return decode_s + prefilled / timing.prefill_tokens_per_s
