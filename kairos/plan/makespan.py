"""How long calls take on a pool, as a fluid: a call's steps are not looked at one by one.

Sequences that decode on an instance get a token each in every step, so between two events (a call
comes, or ends) all steps are alike but for the KV cache that grows: a stretch of them is one sum.
Steps with prompts in them are taken one by one, since they are few. Costs are `StepCost`'s. What
is found in a prefix cache is what an earlier call on the instance had, while memory for it is left.

Not modelled: preemption (a call goes to an instance when its prompt and half of its answer fit),
what the balancer learns, and anything that fails.
"""

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Sequence

import msgspec

from kairos.engine_profile import EngineProfile
from kairos.planner.engine_rates import attended_pairs

_COMES, _ENDS, _BEGINS = 0, 1, 2


class FluidCall(msgspec.Struct, frozen=True, kw_only=True):
    """`prefixes`: names of what the prompt begins with, each with its length in tokens, rising;
    `answered`: the name of the whole prompt with its answer. `after`: positions of calls before
    it in the sequence, whose answers it needs."""

    row: int
    prompt_tokens: float
    completion_tokens: float
    prefixes: tuple[tuple[int, float], ...] = ()
    answered: int | None = None
    after: tuple[int, ...] = ()


class Makespan(msgspec.Struct, frozen=True):
    time_us: float
    cached_tokens: float  # of prompts


def makespan(calls: Sequence[FluidCall], profile: EngineProfile, instances: int) -> Makespan:
    """From the first call to the end of the last. Rows come in their order; what is ready goes to
    the instance that will have computed it first. Takes O(log n) for each call and prefix."""
    pool = _Pool(calls, profile, instances)
    return pool.run()


class _Running:
    """A call on an instance."""

    __slots__ = ("cached", "index", "left", "tokens")

    def __init__(self, index: int, tokens: float, cached: float) -> None:
        self.index, self.tokens, self.cached = index, tokens, cached
        self.left = tokens - cached  # of the prompt, to compute


class _Instance:
    def __init__(self, profile: EngineProfile) -> None:
        self._profile, self._cost = profile, profile.step
        self.coming = 0.0  # tokens of prompts that are on their way
        self.calls = 0  # those included
        self.pending: deque[_Running] = deque()  # prompts
        self.decoding: list[tuple[int, int]] = []  # a heap: step in which it ends, call
        self.step = 0
        self.held = 0.0  # tokens that its calls will have
        self.version = 0  # of what it is doing
        self._context = 0.0  # tokens that a step reads
        self._began_at, self._steps, self._first_us, self._growth_us = 0.0, 0, 0.0, 0.0
        self._chunks: list[tuple[_Running, float]] = []
        self._known: OrderedDict[int, float] = OrderedDict()  # prefixes, and the tokens of each
        self._known_tokens = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self.pending or self.decoding)

    @property
    def is_idle(self) -> bool:
        return not self._steps

    def cached(self, call: FluidCall) -> float:
        """Whole blocks, and never the last token."""
        found = 0.0
        for name, tokens in call.prefixes:
            if name not in self._known:
                break
            found = tokens
        size = self._profile.block_size
        return min(found, call.prompt_tokens - 1) // size * size

    def remember(self, name: int, tokens: float) -> None:
        if name in self._known:
            self._known.move_to_end(name)
            return
        self._known[name] = tokens
        self._known_tokens += tokens
        room = self._profile.kv_tokens
        while self._known_tokens > room:
            _, gone = self._known.popitem(last=False)
            self._known_tokens -= gone

    def begin(self, now: float) -> float:
        """The next step, or stretch of steps; returns when it ends. It has something to do."""
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
                pairs += attended_pairs(running.tokens - running.cached, running.cached)
        arithmetic = cost.prefill_token_us * tokens + cost.decode_seq_us * decoding
        self._first_us = cost.fixed_us + max(cost.weights_us, arithmetic)
        self._first_us += cost.kv_token_us * self._context
        self._first_us += cost.attention_us * pairs + cost.prefill_seq_us * begun
        self._growth_us = cost.kv_token_us * decoding
        self._steps = 1 if self._chunks else self.decoding[0][0] - self.step
        return now + self._lasts(self._steps)

    def cut(self, now: float) -> float:
        """Something has come: returns when the step that is under way ends, and the stretch now."""
        self._steps = min(self._steps, max(1, math.ceil(self._within(now - self._began_at))))
        self.version += 1
        return self._began_at + self._lasts(self._steps)

    def end(self, calls: Sequence[FluidCall]) -> list[int]:
        """Of the stretch. Returns the calls that have ended with it."""
        decoding = len(self.decoding)
        self.step += self._steps
        self._context += self._steps * decoding
        self._steps = 0
        for running, chunk in self._chunks:
            running.left -= chunk
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
        """Steps that so much time has room for: the root of `_lasts`."""
        if self._growth_us <= 0:
            return time_us / self._first_us if self._first_us > 0 else 1.0
        half = self._first_us / self._growth_us - 0.5
        return -half + math.sqrt(half * half + 2 * max(0.0, time_us) / self._growth_us)


class _Pool:
    def __init__(self, calls: Sequence[FluidCall], profile: EngineProfile, instances: int) -> None:
        self._calls, self._profile = calls, profile
        self._instances = [_Instance(profile) for _ in range(instances)]
        self._lacking = [len(call.after) for call in calls]
        self._behind: dict[int, list[int]] = {}
        for index, call in enumerate(calls):
            for before in call.after:
                self._behind.setdefault(before, []).append(index)
        self._ready = [(call.row, at) for at, call in enumerate(calls) if not call.after]
        heapq.heapify(self._ready)
        # When, what, on which instance, and in which version of what it does.
        self._events: list[tuple[float, int, int, int]] = []
        self._sent: list[deque[_Running]] = [deque() for _ in range(instances)]
        self._cached_tokens = 0.0

    def run(self) -> Makespan:
        self._dispatch(0.0)
        now = 0.0
        while self._events:
            now, what, number, version = heapq.heappop(self._events)
            instance = self._instances[number]
            if what == _COMES:
                self._comes(number, now)
            elif version == instance.version:
                if what == _ENDS:
                    self._ended(instance, now)
                if instance.has_work:
                    self._wake(number, instance.begin(now))
        return Makespan(now, self._cached_tokens)

    def _wake(self, number: int, at: float, what: int = _ENDS) -> None:
        heapq.heappush(self._events, (at, what, number, self._instances[number].version))

    def _comes(self, number: int, now: float) -> None:
        instance = self._instances[number]
        running = self._sent[number].popleft()
        instance.coming -= running.left
        instance.pending.append(running)
        if instance.is_idle:
            instance.version += 1
            self._wake(number, now, _BEGINS)
        else:
            self._wake(number, instance.cut(now))

    def _ended(self, instance: _Instance, now: float) -> None:
        for index in instance.end(self._calls):
            call = self._calls[index]
            instance.held -= _holds(call)
            instance.calls -= 1
            if call.answered is not None:
                instance.remember(call.answered, call.completion_tokens)
            for behind in self._behind.get(index, ()):
                self._lacking[behind] -= 1
                if not self._lacking[behind]:
                    heapq.heappush(self._ready, (self._calls[behind].row, behind))
        self._dispatch(now)

    def _dispatch(self, now: float) -> None:
        """What is ready, as far as there is room; the first that has none holds back the rest."""
        while self._ready:
            index = self._ready[0][1]
            number = self._place(self._calls[index])
            if number is None:
                return
            heapq.heappop(self._ready)
            self._send(index, number, now)

    def _place(self, call: FluidCall) -> int | None:
        """The instance that has least to compute before it is through with the call."""
        cost, best, found = self._profile.step, math.inf, None
        for number, each in enumerate(self._instances):
            full = each.calls >= self._profile.max_num_seqs
            if each.calls and (full or each.held + _holds(call) > self._profile.kv_tokens):
                continue
            prompts = each.coming + sum(running.left for running in each.pending)
            new = call.prompt_tokens - each.cached(call)
            beside = each.calls * cost.decode_seq_us + each.held * cost.kv_token_us
            load = (prompts + new) * cost.prefill_token_us + beside * call.completion_tokens
            if load < best:
                best, found = load, number
        return found

    def _send(self, index: int, number: int, now: float) -> None:
        call, instance = self._calls[index], self._instances[number]
        cached = instance.cached(call)
        self._cached_tokens += cached
        instance.held += _holds(call)
        instance.calls += 1
        running = _Running(index, call.prompt_tokens, cached)
        instance.coming += running.left
        self._sent[number].append(running)
        before = 0.0
        for name, tokens in call.prefixes:
            instance.remember(name, tokens - before)
            before = tokens
        self._wake(number, now + self._profile.call_us, _COMES)


def _holds(call: FluidCall) -> float:
    return call.prompt_tokens + call.completion_tokens / 2
