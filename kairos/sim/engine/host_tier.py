"""The lower tier of an engine's cache: blocks in the memory of its host."""

from collections import OrderedDict

from kairos.sim.engine.blocks import Contents


class HostTier:
    """The blocks used last, up to so many, as vLLM's OffloadingConnector keeps them by default.

    Blocks are copied there as they are computed, beside the steps, which take no longer for it.
    """

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._contents: OrderedDict[int, None] = OrderedDict()

    def keep(self, contents: Contents) -> None:
        """See `LowerTier`."""
        for each in contents:
            for content in each:
                self._contents[content] = None
                self._contents.move_to_end(content)
        while len(self._contents) > self._blocks:
            self._contents.popitem(last=False)

    def found(self, contents: Contents) -> int:
        """See `LowerTier`."""
        count = 0
        for each in contents:
            for content in each:
                if content not in self._contents:
                    return count
                self._contents.move_to_end(content)
                count += 1
        return count
