"""A whole balancer before a pool that is full, with requests that wait.

All facts that the live service tells are told, and as many requests come as go. What is measured is
what a fact costs that a call has ended: new keys for its workflow, the search through the queue for
those that fit now, and their booking.
"""

import gc
import heapq
import time
from collections.abc import Callable

import msgspec

from bench.placement_pool import PROMPT_TOKEN_US, START, TOKEN_US, Calls, Size, instance
from kairos.core import (
    POLICIES,
    SECOND,
    Arrived,
    Balancer,
    Dispatch,
    Event,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceStatus,
    Ledger,
    Placement,
    Progressed,
)

FULL = 0.95  # KV memory, in what the calls there hold
POLICY = "kairos"


class _Running(msgspec.Struct):
    tokens: int  # of its answer, in the end
    first_at: int | None = None  # its first token; None: not yet


class Overload:
    """`size` calls run, and so many more requests wait, all the time."""

    def __init__(
        self,
        size: Size,
        waiting: int,
        placement: Callable[[Ledger], Placement],
        seed: int,
    ) -> None:
        self._at = START
        self._balancer = Balancer(POLICIES[POLICY], placement)
        self._calls = Calls(seed, prefixes=True)
        self._waiting = 0  # how many are to wait
        self._tokens: dict[str, int] = {}  # of answers to requests that wait
        self._running: dict[str, _Running] = {}
        self._due: list[tuple[int, str]] = []
        self._second = START + SECOND
        self._fill(size, waiting)

    def _fill(self, size: Size, waiting: int) -> None:
        balancer, names = self._balancer, [f"instance{n}" for n in range(size.instances)]
        self._tell(self._calls.learnt())
        for name in names:
            self._tell(InstanceJoined(instance(name, size)))
        while len(balancer.ledger) < size.instances * size.running:
            self._ask()
            if balancer.waiting:  # for the prompts of others
                self._at += PROMPT_TOKEN_US * 100
                self._tell_progress()
        for name in names:
            kv = int(balancer.ledger.held_tokens(name, self._at) * FULL)
            self._tell(InstanceJoined(instance(name, size, kv)))
        self._waiting = waiting
        self._ask_until_enough_wait()

    @property
    def waiting(self) -> int:
        return self._balancer.waiting

    def ends(self, count: int) -> tuple[list[float], list[float]]:
        """What facts of that many ends cost, in us of CPU time: of those after which nothing went,
        and of those after which something did."""
        in_vain: list[float] = []
        fruitful: list[float] = []
        gc.collect()
        while len(in_vain) + len(fruitful) < count:
            self._tell_until_due()
            _, request_id = heapq.heappop(self._due)
            if self._running[request_id].first_at is None:
                self._first_token(request_id)
                continue
            tokens = self._running.pop(request_id).tokens
            began = time.process_time_ns()
            gone = self._tell(Finished(request_id, completion_tokens=tokens))
            (fruitful if gone else in_vain).append((time.process_time_ns() - began) / 1e3)
            self._ask_until_enough_wait()
        return in_vain, fruitful

    def _tell(self, event: Event) -> int:
        """How many requests were dispatched."""
        gone = [c for c in self._balancer.handle(event, self._at) if isinstance(c, Dispatch)]
        for dispatch in gone:
            request_id = dispatch.request_id
            self._running[request_id] = _Running(self._tokens.pop(request_id))
            booking = self._balancer.ledger.booking(request_id)
            assert booking is not None
            prefill_us = PROMPT_TOKEN_US * booking.request.prompt_tokens
            heapq.heappush(self._due, (self._at + prefill_us, request_id))
        return len(gone)

    def _ask(self) -> None:
        call = self._calls.next(self._at)
        self._tokens[call.request.id] = call.tokens
        self._tell(Arrived(call.request))

    def _ask_until_enough_wait(self) -> None:
        while self.waiting < self._waiting:
            self._ask()

    def _first_token(self, request_id: str) -> None:
        running = self._running[request_id]
        running.first_at = self._at
        heapq.heappush(self._due, (self._at + running.tokens * TOKEN_US, request_id))
        self._tell(FirstToken(request_id))
        self._ask_until_enough_wait()

    def _tell_until_due(self) -> None:
        at = self._due[0][0]
        while self._second <= at:
            self._at, self._second = max(self._at, self._second), self._second + SECOND
            self._tell_progress()
        self._at = max(self._at, at)

    def _tell_progress(self) -> None:
        generated = {
            request_id: min(call.tokens, (self._at - call.first_at) // TOKEN_US)
            for request_id, call in self._running.items()
            if call.first_at is not None
        }
        self._tell(Progressed(generated))
        ledger = self._balancer.ledger
        for name, each in ledger.instances.items():
            if each.kv_tokens is not None:
                used = ledger.held_tokens(name, self._at) / each.kv_tokens
                self._tell(InstanceStatus(name, kv_used=min(0.95, used)))
        self._ask_until_enough_wait()
