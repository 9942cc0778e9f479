"""Which replies a call carries parts of.

A reply's passages wait to be remembered until a call comes that may have one of them; then all that
wait are. Before, what is in the reply's prompt as well has to be found, and that is read then. A
conversation repeats its messages with each call, so their passages are kept, by what the client
spelt. Messages are read one by one: what spans two of them is no passage.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import msgspec

from kairos.live.request.identity.conversation import Conversation
from kairos.live.request.identity.engine_reply import Reply
from kairos.live.request.identity.passages import Hashes, cut, passages

# Of a reply, or of what is new in a call, that are read: half at its beginning, half at its end.
_SEEN_BYTES = 8192
_MAX_WAITING, _MAX_WAITING_BYTES = 16, 8 << 20  # replies, and what they and their prompts take
_MAX_READ_BYTES = 32 << 20  # passages of messages; those longest unused are forgotten
_ENTRY_BYTES = 256  # what a message takes there beside its passages


class _Waiting(msgspec.Struct, frozen=True):
    passages: Hashes
    talk: Conversation  # what it replied to
    reply: int
    workflow: int
    scope: int


class Parts:
    def __init__(self) -> None:
        self._passages = passages()
        self._read: OrderedDict[int, Hashes] = OrderedDict()  # messages
        self._read_bytes = 0
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0

    def add(self, said: Reply, talk: Conversation, reply: int, workflow: int, scope: int) -> None:
        """`talk`: what it replied to. Numbers are as `Passages.remember` has them."""
        text = _encoded("\n".join([said.text, *said.handed]) if said.handed else said.text)
        found = self._passages.of_reply(cut(text, _SEEN_BYTES), scope)
        if not found:
            return
        self._waiting.append(_Waiting(found, talk, reply, workflow, scope))
        self._waiting_bytes += len(found) + talk.size_bytes
        if len(self._waiting) >= _MAX_WAITING or self._waiting_bytes >= _MAX_WAITING_BYTES:
            self._settle()

    def carried(self, talk: Conversation, scope: int) -> Mapping[int, int]:
        """By number of a reply, how many of its passages stand in what is new in a conversation."""
        told = [_encoded(message.text) for message in talk.new]
        if sum(map(len, told)) + len(told) - 1 > _SEEN_BYTES:
            found = self._passages.of([cut(b"\n".join(told), _SEEN_BYTES)])
        else:
            found = self._of(talk, talk.parts_at([message.at for message in talk.new]))
        together = found[0] if len(found) == 1 else b"".join(found)
        carried = self._passages.carried(together, scope)
        if carried is None:
            self._settle()
            carried = self._passages.carried(together, scope)
        assert carried is not None, "nothing waits"
        return carried

    def _settle(self) -> None:
        """Remember what waits."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._passages.nothing_waits()
        for each in waiting:
            prompt = b"".join(self._of(each.talk, each.talk.parts()))
            self._passages.remember(each.passages, each.reply, each.workflow, each.scope, prompt)

    def _of(self, talk: Conversation, parts: Mapping[int, int]) -> list[Hashes]:
        """The passages of some messages: by their keys, their places."""
        found = [*map(self._read.get, parts)]
        known: list[Hashes] = []
        missing: list[int] = []
        for key, hashes in zip(parts, found, strict=True):
            if hashes is None:
                missing.append(key)
            else:
                self._read.move_to_end(key)
                known.append(hashes)
        if missing:
            read = self._passages.of([_encoded(talk.text_at(parts[key])) for key in missing])
            self._keep(zip(missing, read, strict=True))
            known += read
        return known

    def _keep(self, found: Iterable[tuple[int, Hashes]]) -> None:
        for key, hashes in found:
            self._read[key] = hashes
            self._read_bytes += len(hashes) + _ENTRY_BYTES
        while self._read_bytes > _MAX_READ_BYTES:
            self._read_bytes -= len(self._read.popitem(last=False)[1]) + _ENTRY_BYTES


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
