"""The blocks of sequences: what vLLM's KV cache manager does, and a lower tier in its host."""

from collections import OrderedDict
from collections.abc import Callable

from kairos.core import SetupError
from kairos.simulate.engine.blocks import BlockPool, Contents, number_of, part_of
from kairos.simulate.engine.sequence import Sequence


class HostTier:
    """The most recently used blocks, up to a number, as in vLLM's OffloadingConnector by default.

    Blocks are copied as they are computed, concurrently with the steps, which take no longer.
    Several engines of a model may share one tier, and an engine may inherit that of another.
    """

    def __init__(self, blocks: int, loads: Callable[[int], bool] = lambda _: True) -> None:
        """Create the tier.

        `loads` decides whether a number of blocks is worth a fetch; vLLM fetches all that there
        are.
        """
        self._blocks, self._loads = blocks, loads
        self._contents: OrderedDict[int, None] = OrderedDict()

    def keep_blocks(self, contents: Contents) -> None:
        """Note that these are computed, or were used again."""
        for each in contents:
            for content in each:
                self._contents[content] = None
                self._contents.move_to_end(content)
        while len(self._contents) > self._blocks:
            self._contents.popitem(last=False)

    def count_found(self, contents: Contents) -> int:
        """Count the first of them that are there."""
        count = 0
        for each in contents:
            for content in each:
                if content not in self._contents:
                    return self._chosen(count)
                self._contents.move_to_end(content)
                count += 1
        return self._chosen(count)

    def _chosen(self, count: int) -> int:
        return count if count and self._loads(count) else 0


class Memory:
    """Blocks are given for the tokens of one step at a time, and all taken back together."""

    def __init__(self, blocks: int, block_size: int, tier: HostTier | None = None) -> None:
        self.pool = BlockPool(blocks)
        self.block_size = block_size
        self._tier = tier

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def missing(self, sequence: Sequence, tokens: int) -> int:
        """Return how many more blocks the sequence needs for `tokens` more tokens."""
        return self.blocks(sequence.computed + tokens) - self.blocks(sequence.computed)

    def allocate(self, sequence: Sequence, tokens: int) -> None:
        """Allocate those blocks.

        The prompt's blocks that become full can be found from now on, as in vLLM: before they are
        computed, also by later calls in the same step.
        """
        self.pool.take_blocks(self.missing(sequence, tokens))
        sequence.computed += tokens
        if sequence.contents:
            self._store(sequence, min(sequence.computed // self.block_size, sequence.prompt_blocks))

    def _store(self, sequence: Sequence, full: int) -> None:
        first = number_of(sequence.names)
        if full > first:
            known = 0
            if sequence.is_answer_known:  # others may have been answered so meanwhile
                known = number_of(self.pool.find_blocks(sequence.contents_of(0, full))) - first
            contents = sequence.contents_of(first, full)
            sequence.names += self.pool.store(contents, known)
            if self._tier is not None:
                self._tier.keep_blocks(contents)

    def hold_contents(self, contents: Contents) -> None:
        """Add a permanent user to blocks with these contents.

        Raises:
            SetupError: They do not fit.
        """
        names = self.pool.find_blocks(contents)
        known, number = number_of(names), number_of(contents)
        if number - known + self.pool.idle_among(names) > self.pool.free:
            raise SetupError(f"{number} blocks are to be held, and {self.pool.free} are free")
        self.pool.share(names)
        if number > known:
            self.pool.take_blocks(number - known)
            self.pool.store(part_of(contents, known, number))

    def admit_sequence(self, sequence: Sequence) -> bool:
        """Give it the blocks that are found; False where the rest would not fit.

        All of it must fit (vLLM's `scheduler_reserve_full_isl`), although the rest is given only
        as it is computed. The last token is never found: it has to be computed for the next one.
        """
        names = self.pool.find_blocks(
            sequence.contents_of(0, (sequence.tokens - 1) // self.block_size)
        )
        found = number_of(names)
        missing = self.blocks(sequence.tokens) - found
        if missing + self.pool.idle_among(names) > self.pool.free:
            return False
        self.pool.share(names)
        sequence.names = names
        sequence.computed = found * self.block_size
        return True

    def in_lower_tier(self, sequence: Sequence) -> int:
        """Tokens that lie there, of those behind what was found at its admission: full blocks."""
        if self._tier is None or sequence.contents is None:
            return 0
        first, end = sequence.computed // self.block_size, (sequence.tokens - 1) // self.block_size
        return self._tier.count_found(sequence.contents_of(first, end)) * self.block_size

    def reserve(self, sequence: Sequence, tokens: int) -> None:
        """Blocks for what it fetches. Nobody finds them before they are here (`fetched`)."""
        self.pool.take_blocks(self.missing(sequence, tokens))
        sequence.computed += tokens

    def fetched(self, sequence: Sequence) -> None:
        if sequence.contents is not None:
            self._store(sequence, min(sequence.computed // self.block_size, sequence.prompt_blocks))

    def release_unread(self, sequence: Sequence) -> None:
        """The blocks of one that fetched them, and has not run. It has computed nothing."""
        others = self.blocks(sequence.computed) - number_of(sequence.names)
        self.pool.release(sequence.names, others)
        sequence.names = []
        sequence.computed = 0

    def release(self, sequence: Sequence) -> None:
        """Release all blocks of the sequence. `computed` keeps its value.

        Full blocks of the answer can be found only from now on: nobody looks for them while the
        sequence runs.
        """
        if sequence.contents is not None:
            self._store(sequence, sequence.computed // self.block_size)
        others = self.blocks(sequence.computed) - number_of(sequence.names)
        self.pool.release(sequence.names, others)
        sequence.names = []
