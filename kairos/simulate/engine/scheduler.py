"""Scheduler of a modelled engine: vLLM's V1 scheduler, with its queue.

Sequences that decode are counted, so that no step walks over them.
"""

import heapq
from bisect import bisect_right
from functools import partial
from itertools import count
from typing import Literal

from kairos.core import EngineProfile
from kairos.simulate.engine.cost import Step
from kairos.simulate.engine.fetched_caches import FetchedCaches
from kairos.simulate.engine.memory import HostTier, Memory
from kairos.simulate.engine.sequence import EngineStats, Sequence, What


class Scheduler:
    """Scheduler: waiting and running sequences.

    Decoding sequences are in `Decoding`. At most one other sequence runs, and it is the last: where
    the budget was not enough for a prompt, nothing was left for later ones. So each running
    sequence gets at least one token of the budget, as long as there are blocks.
    """

    def __init__(
        self, profile: EngineProfile, stats: EngineStats, tier: HostTier | None = None
    ) -> None:
        self.memory = Memory(profile.kv_tokens // profile.block_size, profile.block_size, tier)
        self.waiting = Waiting(profile.scheduling)
        self.running: dict[Sequence, None] = {}  # in the order of their admission
        self._max_num_seqs = profile.max_num_seqs
        self._max_num_batched_tokens = profile.max_num_batched_tokens
        self._stats = stats
        self._decoding = Decoding(profile.block_size)
        self._prefilling: Sequence | None = None
        self._starved: list[Sequence] = []  # get no token in the current step, but could decode
        self._turns = count()
        self._number = 0  # of the current step, or of the next one if none is in progress
        self._allocated = False  # what decodes has its blocks for step `_number`
        self._step = Step()  # the current one, or the last
        self.caches = FetchedCaches(self.memory, stats)
        self.is_stuck = False  # there was nothing to compute; something must happen first

    @property
    def has_work(self) -> bool:
        return bool(self.running or (self.waiting and not self.is_stuck))

    def blocks_to_allocate(self) -> int:
        """Return the blocks that decoding needs in this step, not yet taken from the pool."""
        return 0 if self._allocated else self._decoding.new_blocks(self._number, 1)

    # The beginning of a step

    def begin_step(self) -> Step:
        """Decide what the next step computes; something must wait or run.

        Where it would compute nothing, because all that had its turn was preempted, it takes no
        time: the one after it is decided at once. Where nothing runs, and what waits cannot, since
        caches that are fetched or kept have its room, nothing is computed until something happens.
        """
        while not self._try_step():
            pass
        self.is_stuck = not self._step.chunks and not self._step.decoding
        return self._step

    def _try_step(self) -> bool:
        self._step = step = Step()
        self._allocated = True
        decoding, prefilling = self._decoding, self._prefilling
        budget = self._max_num_batched_tokens - decoding.number
        new_blocks, chunk, more = decoding.new_blocks(self._number, 1), 0, 0
        if prefilling:
            chunk = min(prefilling.lacking, budget)
            more = self.memory.missing(prefilling, chunk)
        if new_blocks + more > self.memory.pool.free:
            return self._squeeze(step)
        self.memory.pool.take_blocks(new_blocks)
        if prefilling:
            self._prefill(prefilling, chunk)
        self._admit(budget - chunk)
        step.decoding += decoding.number
        step.kv_tokens += decoding.kv_tokens
        if not step.chunks and decoding.number:
            # What could not be admitted in the first of them cannot in those that follow: blocks
            # only become fewer, and so does what is found in them.
            step.repeats = decoding.repeats(self._number, self.memory.pool.free)
        return True

    def _prefill(self, sequence: Sequence, tokens: int) -> None:
        self.memory.allocate(sequence, tokens)
        self._step.add_prefill(sequence, tokens)
        self._prefilling = sequence if sequence.lacking else None

    def _admit(self, budget: int) -> None:
        """Admit waiting sequences from the front; one that does not fit blocks the next ones."""
        while budget > 0 and self.waiting and len(self.running) < self._max_num_seqs:
            sequence = self.waiting.first()
            if not sequence.is_loaded and not self.memory.admit_sequence(sequence):
                break
            self.waiting.pop()
            if self.caches.begin_fetch(sequence):
                continue
            sequence.turn = next(self._turns)
            self.running[sequence] = None
            if not sequence.preemptions:
                self._begin_prompt(sequence)
            tokens = min(sequence.lacking or 1, budget)
            budget -= tokens
            if not sequence.lacking:  # it fetched all; the last token is computed again
                self._step.add_prefill(sequence, tokens)
            elif sequence.can_decode:  # all the rest was found
                self.memory.allocate(sequence, tokens)
                self._step.add_decode(sequence)
            else:
                self._prefill(sequence, tokens)

    def _begin_prompt(self, sequence: Sequence) -> None:
        self._step.begun += 1
        if sequence.contents is not None and not sequence.is_loaded:
            sequence.cached_tokens = sequence.computed
            self._stats.cached_tokens += sequence.computed
            self._stats.queried_tokens += sequence.prompt_tokens

    # A step where there is no room for all that runs

    def _squeeze(self, step: Step) -> bool:
        """Give what runs its tokens one by one, preempting others, or itself, for their blocks.

        False where that leaves nothing to compute.
        """
        self._decoding.take_all(self._number)
        left = list(self.running)
        computing: dict[Sequence, int] = {}
        budget, index = self._max_num_batched_tokens, 0
        while index < len(left):
            sequence = left[index]
            tokens = min(sequence.lacking, budget)
            while sequence.turn is not None and not self._fits(sequence, tokens):
                victim = self.waiting.victim(left)
                index -= left.index(victim) < index
                left.remove(victim)
                given_back = computing.pop(victim, 0)
                budget += given_back
                self._preempt(victim, given_back)
            if sequence.turn is None:
                break
            self.memory.allocate(sequence, tokens)
            computing[sequence] = tokens
            budget -= tokens
            index += 1
        for sequence, tokens in computing.items():
            self._add_squeezed(step, sequence, tokens)
        self._starved = [each for each in left if each not in computing and each.can_decode]
        if not computing:
            self._restore_starved()
        return bool(computing)

    def _fits(self, sequence: Sequence, tokens: int) -> bool:
        return self.memory.missing(sequence, tokens) <= self.memory.pool.free

    def _preempt(self, sequence: Sequence, given_back: int) -> None:
        """Preempt a sequence. `given_back`: its tokens that were to be computed in this step."""
        self._leave(sequence)
        sequence.is_loaded = False
        sequence.ever_computed = max(sequence.ever_computed, sequence.computed - given_back)
        sequence.computed = 0
        sequence.preemptions += 1
        self._stats.preemptions += 1
        self.waiting.push(sequence)

    def _add_squeezed(self, step: Step, sequence: Sequence, tokens: int) -> None:
        if sequence is not self._prefilling:
            step.add_decode(sequence)
            return
        step.add_prefill(sequence, tokens)
        if not sequence.lacking:
            self._prefilling = None

    def _restore_starved(self) -> None:
        for sequence in self._starved:
            if sequence.turn is not None:
                self._decoding.add(sequence, self._number)
        self._starved = []

    # The end of a step

    def pass_steps(self, steps: int) -> None:
        """Pass over repetitions of the current step; the next one has begun."""
        already = int(self._allocated)
        if steps > already:
            new_blocks = self._decoding.new_blocks(self._number + already, steps - already)
            self.memory.pool.take_blocks(new_blocks)
        self._allocated = False
        self._number += steps
        self._decoding.pass_steps(steps)
        stats, step = self._stats, self._step
        stats.steps += steps
        stats.decode_tokens += steps * step.decoding
        stats.prefill_tokens += steps * step.prefill_tokens

    def end_step(self, aborted: list[Sequence]) -> list[tuple[What, Sequence]]:
        """End the current steps. Return what clients see of them, in order.

        Sequences aborted during the step are removed first, and become invisible.
        """
        answered = [each for each, tokens in self._step.chunks if self._computed(each, tokens)]
        for sequence in aborted:
            self.drop_sequence(sequence)
        seen: list[tuple[What, Sequence]] = []
        for sequence in self._decoding.take_finished(self._number):
            self._finish(sequence)
            seen.append(("finished", sequence))
        for sequence in answered:
            if sequence.turn is not None:
                self._answer(sequence, seen)
        self._restore_starved()
        if self._prefilling and self._prefilling.can_decode:
            self._decoding.add(self._prefilling, self._number)
            self._prefilling = None
        return seen

    def _answer(self, sequence: Sequence, seen: list[tuple[What, Sequence]]) -> None:
        if sequence.generated == 1:
            seen.append(("first_token", sequence))
        if sequence.generated < sequence.call.completion_tokens:
            self._decoding.add(sequence, self._number)
        else:
            self._finish(sequence)
            seen.append(("finished", sequence))

    def _computed(self, sequence: Sequence, tokens: int) -> bool:
        """Count tokens as computed. Return whether that produced a token of the answer."""
        before = sequence.computed - tokens
        again = max(0, min(sequence.computed, sequence.ever_computed) - before)
        sequence.recomputed_tokens += again
        self._stats.recomputed_tokens += again
        if sequence.lacking:
            return False
        sequence.generated += 1
        return True

    def generated(self, sequence: Sequence) -> int:
        """Tokens of its answer so far."""
        if sequence.ends_in_step is None:
            return sequence.generated
        return sequence.call.completion_tokens - (sequence.ends_in_step - self._number + 1)

    def drop_sequence(self, sequence: Sequence) -> None:
        """Remove an aborted sequence, which waits, or runs while no step is in progress."""
        if self.caches.is_loading(sequence):
            sequence.is_dropped = True
        elif sequence.turn is None:
            self.waiting.remove(sequence)
            if sequence.is_loaded:
                self.memory.release_unread(sequence)
        else:
            self._leave(sequence)
        self._stats.aborted_tokens += sequence.generated

    def fetched(self, call_id: str, *, came: bool) -> None:
        """Resume a call whose fetch has ended; if it failed, the call computes its prompt."""
        if (sequence := self.caches.end_fetch(call_id, came=came)) is not None:
            self.waiting.push(sequence)

    def _finish(self, sequence: Sequence) -> None:
        if sequence.call.keeps_cache:
            self._stop(sequence)
            self.caches.keep_blocks(sequence)
        else:
            self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Stop a running sequence, and release its blocks."""
        self._stop(sequence)
        self.memory.release(sequence)

    def _stop(self, sequence: Sequence) -> None:
        if sequence.ends_in_step is not None:
            self._decoding.remove(sequence, self._number)
        if sequence is self._prefilling:
            self._prefilling = None
        del self.running[sequence]
        sequence.turn = None


class Waiting:
    """Waiting sequences in order of arrival, or by priority first.

    A preempted sequence keeps its place. In order of arrival that is before all that never ran, as
    in vLLM, which puts it in front: the newest is preempted first, and resumes last.
    """

    def __init__(self, scheduling: Literal["fcfs", "priority"]) -> None:
        self._by_priority = scheduling == "priority"
        self._heap: list[tuple[int, int, Sequence]] = []  # (priority, number, sequence)

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, sequence: Sequence) -> None:
        priority = sequence.call.priority if self._by_priority else 0
        heapq.heappush(self._heap, (priority, sequence.number, sequence))

    def first(self) -> Sequence:
        return self._heap[0][2]

    def pop(self) -> None:
        heapq.heappop(self._heap)

    def remove(self, sequence: Sequence) -> None:
        self._heap = [entry for entry in self._heap if entry[2] is not sequence]
        heapq.heapify(self._heap)

    def victim(self, running: list[Sequence]) -> Sequence:
        """Return the sequence to preempt: the one that would be last here, or came last."""
        if self._by_priority:
            return max(running, key=lambda each: (each.call.priority, each.number))
        return running[-1]


class Decoding:
    """Sequences that decode; each gets a token in every step.

    All methods take `step`, the number of the step that comes next, or is in progress. A sequence
    that pauses is removed for that step.
    """

    def __init__(self, block_size: int) -> None:
        self.number = 0
        self.kv_tokens = 0  # that they read together in the next step
        self._block_size = block_size
        # A heap of (step, turn, sequence): in which step each gets its last token. What left
        # before its end stays, until it is at the top.
        self._ends: list[tuple[int, int, Sequence]] = []
        # How many need a new block in the steps whose number has this remainder.
        self._crossing = [0] * block_size

    def add(self, sequence: Sequence, step: int) -> None:
        assert sequence.turn is not None
        assert sequence.can_decode
        ends_in = step + sequence.call.completion_tokens - sequence.generated - 1
        sequence.ends_in_step = ends_in
        heapq.heappush(self._ends, (ends_in, sequence.turn, sequence))
        self.number += 1
        self.kv_tokens += sequence.tokens
        self._crossing[(step - sequence.computed) % self._block_size] += 1

    def remove(self, sequence: Sequence, step: int) -> None:
        """Remove a sequence, with `generated` and `computed` as they are before `step`."""
        assert sequence.ends_in_step is not None
        left = sequence.ends_in_step - step + 1
        sequence.ends_in_step = None
        sequence.generated = sequence.call.completion_tokens - left
        sequence.computed = sequence.tokens - 1
        self.number -= 1
        self.kv_tokens -= sequence.tokens
        self._crossing[(step - sequence.computed) % self._block_size] -= 1
        while self._ends and self._ends[0][2].ends_in_step is None:
            heapq.heappop(self._ends)

    def take_finished(self, step: int) -> list[Sequence]:
        """Remove and return the sequences that ended before `step`, in running order."""
        finished: list[Sequence] = []
        while self._ends and self._ends[0][0] < step:
            sequence = self._ends[0][2]
            finished.append(sequence)
            self.remove(sequence, step)
        return finished

    def take_all(self, step: int) -> None:
        ends, self._ends = self._ends, []
        for _, _, sequence in ends:
            if sequence.ends_in_step is not None:
                self.remove(sequence, step)

    def pass_steps(self, steps: int) -> None:
        self.kv_tokens += steps * self.number

    def repeats(self, step: int, free: int) -> int:
        """Return the number of steps from `step` on that all can make without a change.

        They end when a sequence gets its last token, or the next step lacks free blocks.
        """
        steps = self._ends[0][0] - step + 1
        if self.new_blocks(step + 1, steps - 1) <= free:
            return steps
        return bisect_right(range(steps), free, key=partial(self.new_blocks, step + 1))

    def new_blocks(self, step: int, steps: int) -> int:
        """Return how many blocks all sequences need together in `steps` steps from `step` on."""
        begin = step % self._block_size
        if steps == 1:
            return self._crossing[begin]
        whole, rest = divmod(steps, self._block_size)
        end = begin + rest
        crossing = self._crossing
        partly = sum(crossing[begin:end])
        if end > self._block_size:
            partly += sum(crossing[: end - self._block_size])
        return whole * self.number + partly
