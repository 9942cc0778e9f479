"""Engine modelled as a fluid, with the calls that flow through it; `makespan.py` models a pool.

Decoding sequences get a token each in every step, so between two events (a call arrives, or ends)
all steps are alike but for the growing KV cache: a stretch of them is one sum. Steps with prompts
are computed one by one, since they are few. Costs are `StepCost`'s. The prefix cache has what an
earlier call on the instance left, as long as memory lasts.
"""

import heapq
import math
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from kairos.core import EngineProfile, StepCost


class FluidCall(msgspec.Struct, frozen=True, kw_only=True):
    """Call in the fluid model.

    `prefixes`: marks of the prompt's prefixes, each with its length in tokens, rising; `answered`:
    mark of the prompt with its answer. `after`: positions of earlier calls whose answers it needs.
    """

    row: int
    prompt_tokens: float
    completion_tokens: float
    prefixes: tuple[tuple[int, float], ...] = ()
    answered: int | None = None
    after: tuple[int, ...] = ()
    function_us: float = 0.0  # time of a function or a processor; 0: a call of an engine
    processor: str = ""  # its kind; calls of a kind run one by one

    @property
    def holds(self) -> float:
        """Return the mean tokens in an engine's memory: the prompt and half of the answer."""
        return self.prompt_tokens + self.completion_tokens / 2


def drop_inner_marks(calls: Sequence[FluidCall]) -> list[FluidCall]:
    """Return the calls without marks inside a stretch that no prompt leaves.

    All prompts with one mark of a stretch have its last mark, so an engine holds the whole stretch
    or, but for what it has forgotten in part, nothing of it.
    """
    follows: dict[int, int] = {}  # by mark, the next one
    parted = {call.answered for call in calls}
    for call in calls:
        if not call.prefixes:
            continue
        names = [name for name, _ in call.prefixes]
        parted.add(names[-1])
        parted.update(
            name for name, after in pairwise(names) if follows.setdefault(name, after) != after
        )
    return [
        msgspec.structs.replace(
            call, prefixes=tuple(each for each in call.prefixes if each[0] in parted)
        )
        for call in calls
    ]


class Running:
    """Call on an instance."""

    __slots__ = ("cached", "index", "left", "tokens")

    def __init__(self, index: int, tokens: float, cached: float) -> None:
        self.index, self.tokens, self.cached = index, tokens, cached
        self.left = tokens - cached  # prompt tokens to compute


class FluidInstance:
    def __init__(self, profile: EngineProfile) -> None:
        self._profile, self._cost = profile, profile.step
        self.coming = 0.0  # tokens of prompts that are on their way
        self.calls = 0  # those included
        self.pending: deque[Running] = deque()  # prompts to compute
        self._to_compute = 0.0  # tokens of these
        self.decoding: list[tuple[int, int]] = []  # a heap: the step in which it ends, call
        self.step = 0
        self.held = 0.0  # tokens that its calls will hold
        self.version = 0  # of what it is doing
        self._context = 0.0  # tokens that a step reads
        self._began_at, self._steps, self._first_us, self._growth_us = 0.0, 0, 0.0, 0.0
        self._chunks: list[tuple[Running, float]] = []
        self._users: dict[int, int] = {}  # by prefix, calls that hold it
        self._known: OrderedDict[int, float] = OrderedDict()  # prefixes, and the tokens of each
        self._known_tokens = 0.0

    @property
    def taken(self) -> float:
        """Return the load: shares of the memory, and of a step by prompts in progress."""
        prompts = self.coming + self._to_compute
        return self.held / self._profile.kv_tokens + prompts / self._profile.max_num_batched_tokens

    @property
    def has_work(self) -> bool:
        return bool(self.pending or self.decoding)

    @property
    def is_idle(self) -> bool:
        return not self._steps

    def cached(self, call: FluidCall) -> float:
        """Return the cached tokens of a prompt: whole blocks, never the last token."""
        found, known = 0.0, self._known
        for name, tokens in call.prefixes:
            if name not in known:
                break
            found = tokens
        size = self._profile.block_size
        return min(found, call.prompt_tokens - 1) // size * size

    def needs(self, call: FluidCall) -> float:
        """Return the memory that a call needs, less the prompt tokens held by other calls."""
        prefixes, users = call.prefixes, self._users
        # A call holds all prefixes before one that it holds.
        held = bisect_right(prefixes, False, key=lambda each: each[0] not in users)
        return call.holds - (prefixes[held - 1][1] if held else 0.0)

    def hold(self, call: FluidCall) -> None:
        """Reserve a call's memory."""
        self.held += self.needs(call)
        self.calls += 1
        users = self._users
        for name, _ in call.prefixes:
            users[name] = users.get(name, 0) + 1

    def release(self, call: FluidCall) -> None:
        """Release the memory that only this call holds."""
        users = self._users
        for name, _ in call.prefixes:
            left = users[name] - 1
            if left:
                users[name] = left
            else:
                del users[name]
        self.held -= self.needs(call)
        self.calls -= 1

    def remember_prompt(self, call: FluidCall) -> None:
        before = 0.0
        known, added = self._known, 0.0
        for name, tokens in call.prefixes:
            if name in known:
                known.move_to_end(name)
            else:
                known[name] = tokens - before
                added += tokens - before
            before = tokens
        self._known_tokens += added
        self._forget_oldest()

    def remember_answer(self, call: FluidCall) -> None:
        """Keep the answer as the prefix of a chat that continues."""
        known, name = self._known, call.answered
        if name is None:
            return
        if name in known:
            known.move_to_end(name)
            return
        known[name] = call.completion_tokens
        self._known_tokens += call.completion_tokens
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        room = self._profile.kv_tokens
        while self._known_tokens > room:
            _, gone = self._known.popitem(last=False)
            self._known_tokens -= gone

    def add(self, running: Running) -> None:
        """Add a prompt that has arrived."""
        self.coming -= running.left
        self.pending.append(running)
        self._to_compute += running.left

    def begin(self, now: float) -> float:
        """Begin the next step, or stretch of steps; return when it ends. There must be work."""
        self.version += 1
        cost, decoding = self._cost, len(self.decoding)
        self._began_at, self._chunks = now, []
        budget = max(1.0, self._profile.max_num_batched_tokens - decoding)
        tokens = pairs = begun = 0.0
        for running in self.pending:
            chunk = min(running.left, budget - tokens)
            if chunk <= 0:
                break
            self._chunks.append((running, chunk))
            tokens += chunk
            begun += running.left == running.tokens - running.cached
            if chunk == running.left:
                pairs += StepCost.attended_pairs(running.tokens - running.cached, running.cached)
        arithmetic = cost.prefill_token_us * tokens + cost.decode_seq_us * decoding
        self._first_us = cost.fixed_us + max(cost.weights_us, arithmetic)
        self._first_us += cost.kv_token_us * self._context
        self._first_us += cost.attention_us * pairs + cost.prefill_seq_us * begun
        self._growth_us = cost.kv_token_us * decoding
        self._steps = 1 if self._chunks else self.decoding[0][0] - self.step
        return now + self._lasts(self._steps)

    def cut(self, now: float) -> float:
        """Cut the stretch at the end of the current step because of an event; return its end."""
        self._steps = min(self._steps, max(1, math.ceil(self._within(now - self._began_at))))
        self.version += 1
        return self._began_at + self._lasts(self._steps)

    def end(self, calls: Sequence[FluidCall]) -> list[int]:
        """End the stretch; return the calls that ended with it."""
        decoding = len(self.decoding)
        self.step += self._steps
        self._context += self._steps * decoding
        self._steps = 0
        for running, chunk in self._chunks:
            running.left -= chunk
            self._to_compute -= chunk
            if running.left <= 0:
                self.pending.popleft()
                more = max(0, round(calls[running.index].completion_tokens) - 1)
                heapq.heappush(self.decoding, (self.step + more, running.index))
                self._context += running.tokens + 1
        ended = []
        while self.decoding and self.decoding[0][0] <= self.step:
            index = heapq.heappop(self.decoding)[1]
            call = calls[index]
            self._context -= call.prompt_tokens + max(1, round(call.completion_tokens))
            ended.append(index)
        return ended

    def _lasts(self, steps: int) -> float:
        return steps * self._first_us + self._growth_us * steps * (steps - 1) / 2

    def _within(self, time_us: float) -> float:
        """Return the number of steps that fit into a time: the root of `_lasts`."""
        if self._growth_us <= 0:
            return time_us / self._first_us if self._first_us > 0 else 1.0
        half = self._first_us / self._growth_us - 0.5
        return -half + math.sqrt(half * half + 2 * max(0.0, time_us) / self._growth_us)
