"""KV memory in blocks, and the prefix cache: what vLLM's block pool does, without its blocks."""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import count

from kairos.workload.prompt import Prompt

# Contents are integers of 63 bits, which Python handles fastest: hashes are below this, answers
# above it.
_ANSWERS = 1 << 62
_BLOCK_BITS = 20  # blocks of a call, at most


def contents_of(prompt: Prompt, block_size: int) -> list[int]:
    """What is in each full block of a prompt: equal where all tokens up to its end are.

    A chain of hashes, as vLLM's is, with a link for each piece instead of each block: the content
    is the hash of the piece in which the block ends, and of those before it, plus the block's
    number. So the contents of blocks that end in one piece are consecutive.
    """
    contents: list[int] = []
    chain = tokens = 0
    for piece in prompt:
        chain = _link(chain, tokens, piece.name)
        tokens += piece.tokens
        contents.extend(range(chain + len(contents), chain + tokens // block_size))
    return contents


def answer_contents(call_number: int, first: int, end: int) -> range:
    """What is in these blocks of a call, which end in its answer.

    An answer is the call's own: only the call itself can find it, after a preemption.
    """
    chain = _ANSWERS + (call_number << _BLOCK_BITS)
    return range(chain + first, chain + end)


def _link(chain: int, tokens: int, name: str) -> int:
    digest = blake2b(f"{chain} {tokens} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (_ANSWERS >> 1)


class BlockPool:
    """Which contents can be found, and which of them make room first.

    Only blocks that can be found have an identity, their *name*: the content itself, or, where
    another block had the same content first (vLLM does not merge them), a negative number. All
    others are only counted. A free block is *blank*, or *idle*: nobody uses it, but it can be
    found. Blank ones are taken first, then the idle ones in the order in which they became so.

    Of one sequence's blocks the later become idle first, and a sequence that finds a block finds
    all those before it. So where a content can be found, the contents before it can be, too.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._blank = blocks
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._users: dict[int, int] = {}  # of each block that can be found and is in use
        self._copies: dict[int, list[int]] = {}  # by content, oldest first
        self._copied: dict[int, int] = {}  # the contents of copies
        self._copy_names = count(-1, -1)

    @property
    def free(self) -> int:
        return self._blank + len(self._idle)

    def take(self, number: int) -> None:
        """At most as many as are free. They have no content yet."""
        blank = min(number, self._blank)
        self._blank -= blank
        for _ in range(number - blank):
            name, _ = self._idle.popitem(last=False)
            if name < 0:
                self._forget_copy(name)

    def _forget_copy(self, name: int) -> None:
        content = self._copied.pop(name)
        copies = self._copies[content]
        copies.remove(name)
        if not copies:
            del self._copies[content]

    def find(self, contents: Sequence[int]) -> list[int]:
        """The names of blocks with these contents, up to the first that no block has."""
        names: list[int] = []
        for content in contents:
            if content in self._users or content in self._idle:
                names.append(content)
            elif content in self._copies:
                names.append(self._copies[content][0])
            else:
                break
        return names

    def idle_among(self, names: list[int]) -> int:
        return sum(name in self._idle for name in names)

    def share(self, names: list[int]) -> None:
        """One more sequence uses blocks that were found."""
        for name in names:
            if name in self._idle:
                del self._idle[name]
                self._users[name] = 1
            else:
                self._users[name] += 1

    def store(self, contents: list[int]) -> list[int]:
        """Blocks that were taken get contents, and can be found; returns their names."""
        if contents and self._is_known(contents[0]):  # else none after it is: see above
            contents = [self._name(content) for content in contents]
        self._users.update(dict.fromkeys(contents, 1))
        return contents

    def _is_known(self, content: int) -> bool:
        return content in self._users or content in self._idle or content in self._copies

    def _name(self, content: int) -> int:
        if not self._is_known(content):
            return content
        name = next(self._copy_names)
        self._copies.setdefault(content, []).append(name)
        self._copied[name] = content
        return name

    def release(self, names: list[int], others: int) -> None:
        """A sequence uses these no more, in its order, nor so many that cannot be found."""
        self._blank += others
        users, idle = self._users, self._idle
        for name in reversed(names):
            if users[name] == 1:
                del users[name]
                idle[name] = None
            else:
                users[name] -= 1
