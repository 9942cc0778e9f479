"""The lower tier of an engine's cache: blocks in the memory of its host."""

from collections import OrderedDict
from collections.abc import Callable

from kairos.simulate.engine.blocks import Contents


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
