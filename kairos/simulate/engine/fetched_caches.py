"""Transfer of KV caches between places, as vLLM's KV connectors affect its scheduler.

As with its NixlConnector (vLLM 0.32, disaggregated prefill): the instance that computed a prompt
keeps the blocks after its answer of one token, until they have been read. The other instance, when
it is the call's turn, gives it the blocks for its prompt that it does not find itself, and
fetches the rest outside of any step; during that the call occupies no sequence. After the transfer
the call waits again, in its old place, and computes the prompt's last token once more, for the
answer's first. As with its OffloadingConnector (a lower tier): full blocks are copied as they are
computed, and blocks that are only in the lower tier are fetched in the same way.

Deviations: fetched blocks all arrive at once, at the end. A call that is preempted after that
recomputes what it does not find.
"""

from typing import NamedTuple

from kairos.simulate.engine.blocks import number_of
from kairos.simulate.engine.memory import Memory
from kairos.simulate.engine.sequence import CacheFrom, EngineStats, Sequence


class Fetch(NamedTuple):
    """A transfer to perform."""

    sequence: Sequence
    tokens: int  # whole blocks
    source: CacheFrom


class FetchedCaches:
    """Owns the blocks of sequences that neither wait without any nor run."""

    def __init__(self, memory: Memory, stats: EngineStats) -> None:
        self._memory, self._stats = memory, stats
        self._loading: dict[str, Sequence] = {}  # by call id
        self._kept: dict[str, Sequence] = {}
        self._begun: list[Fetch] = []

    def begin_fetch(self, sequence: Sequence) -> bool:
        """Begin a fetch for a sequence with its found blocks.

        Return whether it must wait for others.
        """
        if sequence.is_loaded or sequence.preemptions or not sequence.may_fetch:
            return False
        found = number_of(sequence.names)
        source: CacheFrom = "host"
        tokens = 0
        if sequence.call.fetches_cache:
            source, tokens = "instance", sequence.prompt_tokens - sequence.computed
        else:
            tokens = self._memory.in_lower_tier(sequence)
        if not tokens:
            return False
        self._memory.reserve(sequence, tokens)
        self._loading[sequence.call.id] = sequence
        blocks = self._memory.blocks(sequence.computed) - found
        self._begun.append(Fetch(sequence, blocks * self._memory.block_size, source))
        self._count(sequence, found)
        return True

    def _count(self, sequence: Sequence, found: int) -> None:
        """Count a prompt that begins: fetched blocks were not found in this engine's cache."""
        if sequence.contents is None:
            return
        here = found * self._memory.block_size
        sequence.cached_tokens = here if sequence.call.fetches_cache else sequence.computed
        self._stats.cached_tokens += here
        self._stats.queried_tokens += sequence.prompt_tokens

    def take_begun(self) -> list[Fetch]:
        """Return the fetches of the step that was just decided."""
        begun, self._begun = self._begun, []
        return begun

    def end_fetch(self, call_id: str, *, came: bool) -> Sequence | None:
        """End a fetch, successful or not. Return the sequence, which waits from now on.

        None: the call was aborted, and its blocks are free.
        """
        sequence = self._loading.pop(call_id, None)
        if sequence is None:
            return None
        sequence.may_fetch = sequence.is_loaded = came
        if came:
            self._memory.fetched(sequence)
        if not came or sequence.is_dropped:
            self._memory.release_unread(sequence)
        if sequence.is_dropped:
            return None
        return sequence

    def is_loading(self, sequence: Sequence) -> bool:
        return sequence.call.id in self._loading

    def keep_blocks(self, sequence: Sequence) -> None:
        self._kept[sequence.call.id] = sequence

    def release(self, call_id: str) -> None:
        """Release the kept blocks, which were read or are not needed."""
        sequence = self._kept.pop(call_id, None)
        if sequence is not None:
            self._memory.release(sequence)
