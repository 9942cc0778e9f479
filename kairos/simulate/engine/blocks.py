"""KV memory in blocks, and the prefix cache: vLLM's block pool, without individual blocks.

Consecutive blocks of a prompt or an answer have consecutive contents, and mostly share their fate:
they are stored, found, released and evicted together. So contents are ranges, and an operation on a
range takes as long as one on a block.
"""

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from itertools import count

from kairos.simulate.workload.prompt import Prompt

# Contents are integers of 63 bits, which Python handles fastest: hashes are below this, answers
# above it.
_ANSWERS = 1 << 62
_BLOCK_BITS = 20  # blocks of a call, at most

# Of the blocks of a sequence, one after the other; no range is empty.
Contents = list[range]


def contents_of(prompt: Prompt, block_size: int) -> Contents:
    """Return the contents of each full block of a prompt: equal if all tokens up to its end are.

    A chain of hashes, as in vLLM, with a link for each piece instead of each block: a content is
    the hash of the piece in which the block ends, and of the pieces before it, plus the block's
    number. So the contents of blocks that end in one piece are consecutive.
    """
    contents: Contents = []
    chain = tokens = blocks = 0
    for piece in prompt:
        chain = _link(chain, tokens, piece.name)
        tokens += piece.tokens
        first, blocks = blocks, tokens // block_size
        if blocks > first:
            contents.append(range(chain + first, chain + blocks))
    return contents


def answer_contents(call_number: int, first: int, end: int) -> range:
    """Return the contents of a call's blocks that end in its answer, where its text is unknown.

    Such an answer is unique to the call: only the call itself can find it, after a preemption.
    """
    chain = _ANSWERS + (call_number << _BLOCK_BITS)
    return range(chain + first, chain + end)


def number_of(contents: Contents) -> int:
    """Return the number of blocks with these contents."""
    return sum(map(len, contents))


def part_of(contents: Contents, first: int, end: int) -> Contents:
    """Return the contents of the blocks from number `first` up to `end`, as far as they exist."""
    part: Contents = []
    for each in contents:
        number = len(each)
        begin, stop = max(first, 0), min(end, number)
        if begin < stop:
            part.append(each[begin:stop])
        first -= number
        end -= number
    return part


def _link(chain: int, tokens: int, name: str) -> int:
    digest = blake2b(f"{chain} {tokens} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (_ANSWERS >> 1)


class _Run:
    """Blocks that can be found, whose names are consecutive, with the same users."""

    __slots__ = ("end", "first", "users")

    def __init__(self, first: int, end: int, users: int) -> None:
        self.first = first  # name
        self.end = end
        self.users = users  # sequences


class BlockPool:
    """Pool of blocks: which contents can be found, and which are evicted first.

    Only blocks that can be found have an identity, their *name*: the content itself, or, if another
    block had the same content first (vLLM does not merge them), a negative number. All others are
    only counted. A free block is *blank*, or *idle*: unused, but it can be found. Blank ones are
    taken first, then the idle ones in the order in which they became idle.

    Among one sequence's blocks the later become idle first, and a sequence that finds a block finds
    all those before it. So where a content can be found, the contents before it can be, too. A run
    is found by its first block: to look for contents is to walk from run to run.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._blank = blocks
        self._runs: dict[int, _Run] = {}  # by their first names
        self._idle: OrderedDict[_Run, None] = OrderedDict()  # each makes room from its end
        self._idle_blocks = 0
        self._copies: dict[int, list[int]] = {}  # by content, oldest first
        self._copied: dict[int, int] = {}  # the contents of copies, each a run of its own
        self._copy_names = count(-1, -1)

    @property
    def free(self) -> int:
        return self._blank + self._idle_blocks

    def take_blocks(self, number: int) -> None:
        """Take free blocks, which have no content yet. There must be enough."""
        if number <= self._blank:
            self._blank -= number
            return
        left = number - self._blank
        self._blank = 0
        self._idle_blocks -= left
        while left:
            run = next(iter(self._idle))
            taken = min(left, run.end - run.first)
            left -= taken
            run.end -= taken
            if run.end == run.first:
                self._forget(run)

    def _forget(self, run: _Run) -> None:
        del self._idle[run]
        del self._runs[run.first]
        if run.first < 0:
            content = self._copied.pop(run.first)
            copies = self._copies[content]
            copies.remove(run.first)
            if not copies:
                del self._copies[content]

    def find_blocks(self, contents: Contents) -> list[range]:
        """The names of blocks with these contents, up to the first that no block has."""
        names: list[range] = []
        for each in contents:
            content = each.start
            while content < each.stop:
                if (run := self._runs.get(content)) is not None:
                    found = range(content, min(run.end, each.stop))
                elif (copies := self._copies.get(content)) is not None:
                    found = range(copies[0], copies[0] + 1)
                else:
                    return names
                names.append(found)
                content += len(found)
        return names

    def idle_among(self, names: list[range]) -> int:
        """Return how many of the found blocks are unused."""
        return sum(len(each) for each in names if not self._runs[each.start].users)

    def share(self, names: list[range]) -> None:
        """Add a user to found blocks."""
        for each in names:
            run = self._runs[each.start]
            if run.end > each.stop:
                run = self._split(run, each.stop)
            elif not run.users:
                del self._idle[run]
            if not run.users:
                self._idle_blocks -= len(each)
            run.users += 1

    def _split(self, run: _Run, at: int) -> _Run:
        """Split a run before this name, and return the first part.

        The second part keeps its place among the idle runs; the first has none.
        """
        before = self._runs[run.first] = _Run(run.first, at, run.users)
        run.first = at
        self._runs[at] = run
        return before

    def store(self, contents: Contents, known: int = 0) -> list[range]:
        """Give contents to taken blocks, so that they can be found; return their names.

        All of a sequence's contents that could be found were, except for the last block. So none of
        these can be found yet, or only one; or fetched caches arrived in between, or other calls
        with the same first blocks were answered: like all blocks of equal content, these are not
        merged. `known` is the number of blocks that can be found, if that was looked up.
        """
        first = contents[0].start
        if not known and (first in self._runs or first in self._copies):
            known = number_of(self.find_blocks(contents))
        if known:
            again = [self._copy(each) for run in part_of(contents, 0, known) for each in run]
            contents = [*again, *part_of(contents, known, number_of(contents))]
        for each in contents:
            self._runs[each.start] = _Run(each.start, each.stop, 1)
        return contents

    def _copy(self, content: int) -> range:
        name = next(self._copy_names)
        self._copies.setdefault(content, []).append(name)
        self._copied[name] = content
        return range(name, name + 1)

    def release(self, names: Iterable[range], others: int) -> None:
        """Release the blocks of a sequence, in its order, and `others` that cannot be found."""
        self._blank += others
        for run in reversed([run for each in names for run in self._runs_of(each)]):
            run.users -= 1
            if not run.users:
                self._idle[run] = None
                self._idle_blocks += run.end - run.first

    def _runs_of(self, names: range) -> Iterable[_Run]:
        """Yield the runs of these blocks.

        They were one run at first; others may have shared a part.
        """
        name = names.start
        while name < names.stop:
            run = self._runs[name]
            yield run
            name = run.end
