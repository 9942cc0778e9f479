"""The model of an engine once more, slow and obvious: one step at a time, token by token.

It follows vLLM's scheduler line by line and shares no code with `kairos.simulate.engine.engine`,
which must do the same.
"""

from kairos.core import EngineProfile
from kairos.simulate.engine.sequence import CallProgress, EngineCall, EngineStats

PS = 1_000_000  # in a µs


class Block:
    def __init__(self):
        self.users = 0
        self.hash = None


class Request:
    def __init__(self, call: EngineCall, at: int, number: int):
        self.call = call
        self.at = at  # µs
        self.number = number  # of the call, among all
        self.tokens = [(piece.name, n) for piece in call.prompt for n in range(piece.tokens)]
        self.prompt_tokens = len(self.tokens)
        whole = call.whole or ()
        self.whole = [(piece.name, n) for piece in whole for n in range(piece.tokens)]
        self.allocated = 0  # tokens
        self.computed = 0
        self.ever_computed = 0
        self.blocks: list[Block] = []
        self.hashed = 0  # of its blocks
        self.cached_tokens = 0
        self.preemptions = 0
        self.recomputed_tokens = 0

    @property
    def generated(self):
        return len(self.tokens) - self.prompt_tokens

    @property
    def lacking(self):
        return len(self.tokens) - self.computed


class Pool:
    """vLLM's BlockPool, without the null block."""

    def __init__(self, blocks: int, caching: bool):
        self.caching = caching
        self.free = [Block() for _ in range(blocks)]
        self.by_hash: dict[tuple, list[Block]] = {}

    def get(self, number: int) -> list[Block]:
        taken, self.free = self.free[:number], self.free[number:]
        for block in taken:
            if block.hash is not None:
                same = self.by_hash[block.hash]
                same.remove(block)
                if not same:
                    del self.by_hash[block.hash]
                block.hash = None
            block.users = 1
        return taken

    def touch(self, blocks: list[Block]) -> None:
        for block in blocks:
            if block.users == 0:
                self.free.remove(block)
            block.users += 1

    def release(self, blocks: list[Block]) -> None:
        first, last = [], []
        for block in blocks:
            block.users -= 1
            if block.users == 0:
                (first if block.hash is None else last).append(block)
        self.free = first + self.free + last

    def store(self, block: Block, content: tuple) -> None:
        block.hash = content
        self.by_hash.setdefault(content, []).append(block)


class ReferenceEngine:
    def __init__(self, profile: EngineProfile) -> None:
        self.profile = profile
        self.stats = EngineStats()
        self.pool = Pool(profile.kv_tokens // profile.block_size, profile.prefix_caching)
        self.blocks = len(self.pool.free)
        self.factor = 1.0
        self.now = 0  # ps; when a step ended last
        self.step_end: int | None = None  # of the step in progress
        self.step_tokens: list[tuple[Request, int]] = []  # what it computes
        self.begun: list[Request] = []  # prompts, in this step
        self.arriving: list[tuple[int, Request]] = []  # (visible at, ps)
        self.leaving: list[tuple[int, Request]] = []  # (at, ps), while a step is in progress
        self.waiting_requests: list[Request] = []  # in no order, for priority; else in order
        self.running_requests: list[Request] = []
        self.number = 0
        self.seen: list[CallProgress] = []

    # What others see

    def generated(self, call_id: str, at: int) -> int:
        self.run(at * PS)
        known = [request for _, request in self.arriving + self.leaving]
        known = [r for r in self.waiting_requests + self.running_requests if r not in known]
        return sum(request.generated for request in known if request.call.id == call_id)

    @property
    def running(self) -> int:
        return len(self.running_requests)

    @property
    def waiting(self) -> int:
        return len(self.waiting_requests) + len(self.arriving)

    @property
    def used_blocks(self) -> int:
        return self.blocks - len(self.pool.free)

    def add(self, call: EngineCall, at: int) -> None:
        self.run(at * PS)
        self.number += 1
        visible_at = at * PS + round(self.profile.call_us * PS)
        self.arriving.append((visible_at, Request(call, at, self.number)))

    def abort(self, call_id: str, at: int) -> None:
        self.run(at * PS)
        for entry in [e for e in self.arriving if e[1].call.id == call_id]:
            self.arriving.remove(entry)
        for request in [r for r in self.waiting_requests if r.call.id == call_id]:
            self.remove_waiting(request)
        for request in [r for r in self.running_requests if r.call.id == call_id]:
            if self.step_end is None:
                self.remove_aborted(request)
            elif request not in [r for _, r in self.leaving]:
                self.leaving.append((at * PS, request))

    def slow_down(self, factor: float, at: int) -> None:
        self.run(at * PS)
        self.factor = factor

    def next_at(self) -> int | None:
        if self.seen:
            return self.seen[0].at
        if self.step_end is not None:
            return -(-self.step_end // PS)
        if self.running_requests or self.waiting_requests:
            return self.now // PS + 1
        if self.arriving:
            return max(self.now, self.arriving[0][0]) // PS + 1
        return None

    def advance(self, to: int) -> list[CallProgress]:
        self.run(to * PS)
        seen, self.seen = self.seen, []
        return seen

    # Steps

    def run(self, to: int) -> None:
        """A step is decided when all that is told up to its beginning is known: before `to`."""
        while True:
            if self.step_end is not None:
                if self.step_end > to:
                    return
                self.end_step()
                continue
            if not self.running_requests and not self.waiting_requests:
                if not self.arriving:
                    return
                self.now = max(self.now, self.arriving[0][0])
            if self.now >= to:
                return
            self.take_in()
            self.begin_step()

    def take_in(self) -> None:
        while self.arriving and self.arriving[0][0] <= self.now:
            self.waiting_requests.append(self.arriving.pop(0)[1])
        if self.profile.scheduling == "priority":
            self.waiting_requests.sort(key=lambda r: (r.call.priority, r.number))

    def begin_step(self) -> None:
        self.step_tokens, self.begun = [], []
        budget = self.schedule_running(self.profile.max_num_batched_tokens)
        if budget is not None:
            self.schedule_waiting(budget)
        if not self.step_tokens:  # what had its turn was preempted: the next step begins at once
            self.begin_step()
            return
        self.step_end = self.now + self.cost(self.step_tokens)

    def schedule_running(self, budget: int) -> int | None:
        """Returns what is left of the budget; None if anything was preempted."""
        preempted = False
        index = 0
        while index < len(self.running_requests) and budget > 0:
            request = self.running_requests[index]
            new = min(request.lacking, budget)
            while not self.allocate(request, new):
                preempted = True
                victim = self.victim()
                if self.running_requests.index(victim) < index:
                    index -= 1
                for entry in [e for e in self.step_tokens if e[0] is victim]:
                    self.step_tokens.remove(entry)
                    budget += entry[1]
                self.preempt(victim)
                if victim is request:
                    break
            if request not in self.running_requests:
                break
            self.step_tokens.append((request, new))
            budget -= new
            index += 1
        return None if preempted else budget

    def schedule_waiting(self, budget: int) -> None:
        while budget > 0 and self.waiting_requests:
            if len(self.running_requests) == self.profile.max_num_seqs:
                break
            request = self.waiting_requests[0]
            hits = self.hits(request)
            needed = self.blocks_for(len(request.tokens)) - len(hits)
            if needed + sum(block.users == 0 for block in hits) > len(self.pool.free):
                break
            self.waiting_requests.pop(0)
            self.pool.touch(hits)
            request.blocks, request.hashed = hits, len(hits)
            request.computed = len(hits) * self.profile.block_size
            if request.preemptions == 0:
                self.begun.append(request)
                request.cached_tokens = request.computed
                self.stats.cached_tokens += request.computed
                self.stats.queried_tokens += request.prompt_tokens * self.profile.prefix_caching
            new = min(request.lacking, budget)
            assert self.allocate(request, new)
            self.running_requests.append(request)
            self.step_tokens.append((request, new))
            budget -= new

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_size)

    def hits(self, request: Request) -> list[Block]:
        size, found = self.profile.block_size, []
        if self.profile.prefix_caching:
            while (len(found) + 1) * size < len(request.tokens):
                same = self.pool.by_hash.get(tuple(request.tokens[: (len(found) + 1) * size]))
                if not same:
                    break
                found.append(same[0])
        return found

    def allocate(self, request: Request, new: int) -> bool:
        """Blocks for `new` more tokens; those that they fill can be found from now on."""
        tokens = request.computed + new
        more = self.blocks_for(tokens) - len(request.blocks)
        if more > len(self.pool.free):
            return False
        request.blocks += self.pool.get(more)
        if self.pool.caching:
            # The model's deviation: an answer that others may find is stored when its call leaves.
            self.store(request, min(tokens, request.prompt_tokens) if request.whole else tokens)
        request.allocated = tokens
        return True

    def store(self, request: Request, tokens: int) -> None:
        size = self.profile.block_size
        while (request.hashed + 1) * size <= tokens:
            block, request.hashed = request.blocks[request.hashed], request.hashed + 1
            self.pool.store(block, tuple(request.tokens[: request.hashed * size]))

    def victim(self) -> Request:
        if self.profile.scheduling == "priority":
            return max(self.running_requests, key=lambda r: (r.call.priority, r.number))
        return self.running_requests[-1]

    def preempt(self, request: Request) -> None:
        self.running_requests.remove(request)
        self.free(request)
        request.ever_computed = max(request.ever_computed, request.computed)
        request.computed = 0
        request.preemptions += 1
        self.stats.preemptions += 1
        self.waiting_requests.insert(0, request)
        if self.profile.scheduling == "priority":
            self.waiting_requests.sort(key=lambda r: (r.call.priority, r.number))

    def free(self, request: Request) -> None:
        if self.pool.caching and request.whole and request.blocks:
            self.store(request, request.allocated)
        self.pool.release(request.blocks[::-1])
        request.blocks, request.hashed = [], 0

    def cost(self, computes: list[tuple[Request, int]]) -> int:
        """In ps, as `StepCost` says."""
        cost = self.profile.step
        fixed, weights, prefill_token, prefill_seq, decode_seq, kv_token, attention = (
            round(us * self.factor * PS)
            for us in (
                cost.fixed_us,
                cost.weights_us,
                cost.prefill_token_us,
                cost.prefill_seq_us,
                cost.decode_seq_us,
                cost.kv_token_us,
                cost.attention_us,
            )
        )
        arithmetic = memory = 0
        for request, new in computes:
            if is_decoding(request):
                arithmetic += decode_seq
                memory += kv_token * len(request.tokens)
            else:
                if request in self.begun:
                    memory += prefill_seq
                for n in range(request.computed, request.computed + new):
                    arithmetic += prefill_token
                    memory += attention * (n + 1)
        return fixed + max(weights, arithmetic) + memory

    def end_step(self) -> None:
        self.now, self.step_end = self.step_end, None
        self.stats.steps += 1
        answered = []
        for request, new in self.step_tokens:
            if is_decoding(request):
                self.stats.decode_tokens += 1
            else:
                self.stats.prefill_tokens += new
            for n in range(request.computed, request.computed + new):
                if n < request.ever_computed:
                    request.recomputed_tokens += 1
                    self.stats.recomputed_tokens += 1
            request.computed += new
            if request.lacking == 0:
                own = ("the answer to " + request.call.id, request.generated)
                known = request.whole
                request.tokens.append(known[len(request.tokens)] if known else own)
                answered.append(request)
        aborted = [request for _, request in self.leaving]
        self.leaving = []
        for request in aborted:
            if request in self.running_requests:
                self.remove_aborted(request)
        for request in answered:
            if request in self.running_requests:
                self.tell(request)
        self.step_tokens = []

    def tell(self, request: Request) -> None:
        if request.generated == 1:
            self.see("first_token", request)
        if request.generated == request.call.completion_tokens:
            self.see("finished", request)
            self.running_requests.remove(request)
            self.free(request)

    def see(self, what, request: Request) -> None:
        counts = request.cached_tokens, request.preemptions, request.recomputed_tokens
        self.seen.append(CallProgress(-(-self.now // PS), what, request.call.id, *counts))

    def remove_waiting(self, request: Request) -> None:
        self.stats.aborted_tokens += request.generated
        self.waiting_requests.remove(request)

    def remove_aborted(self, request: Request) -> None:
        self.stats.aborted_tokens += request.generated
        self.running_requests.remove(request)
        self.free(request)


def is_decoding(request: Request) -> bool:
    """It lacks the newest token of its answer alone."""
    return request.lacking == 1 and request.generated > 0
