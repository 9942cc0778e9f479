"""The lower tier of an engine's cache: blocks in the memory of its host."""

from collections import OrderedDict
from collections.abc import Callable

from kairos.simulate.engine.blocks import Contents


class HostTier:
    """The blocks used last, up to so many, as vLLM's OffloadingConnector keeps them by default.

    Blocks are copied there as they are computed, beside the steps, which take no longer for it.
    Several engines of a model may have one tier, and an engine that of one before it.
    """

    def __init__(self, blocks: int, loads: Callable[[int], bool] = lambda _: True) -> None:
        """`loads`: whether so many blocks are to be fetched; vLLM fetches all that there are."""
        self._blocks, self._loads = blocks, loads
        self._contents: OrderedDict[int, None] = OrderedDict()

    def keep(self, contents: Contents) -> None:
        """Note that these are computed, or were used again."""
        for each in contents:
            for content in each:
                self._contents[content] = None
                self._contents.move_to_end(content)
        while len(self._contents) > self._blocks:
            self._contents.popitem(last=False)

    def found(self, contents: Contents) -> int:
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
