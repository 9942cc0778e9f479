"""The sequences that get one token in each step: counted, so that no step walks over them."""

import heapq
from bisect import bisect_right
from functools import partial

from kairos.simulate.engine.sequence import Sequence


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
