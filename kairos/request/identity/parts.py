"""Replies whose passages a call carries.

A reply's passages are buffered until a call arrives that may have one of them; then all buffered
ones are stored. Only then is the reply's prompt read, since passages that it also has must be left
out. A conversation repeats its messages with each call, so their passages are cached by the
client's spelling. Over the limit, the tenant with most loses those longest unused. Messages are
read one by one: text across two of them is not a passage.
"""

from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from kairos.core import Holdings
from kairos.request.identity.conversation import Conversation
from kairos.request.identity.engine_reply import Reply
from kairos.request.identity.passages import Hashes, cut, passages

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
    tenant: str


class Parts:
    def __init__(self) -> None:
        self._passages = passages()
        self._read: dict[str, OrderedDict[int, Hashes]] = {}  # messages, by tenant
        self._read_bytes = Holdings()
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0

    def buffer_reply(
        self, said: Reply, talk: Conversation, reply: int, workflow: int, tenant: str
    ) -> None:
        """Buffer a reply. `talk` is what it replied to; numbers as in `Passages.remember`."""
        text = _encoded("\n".join([said.text, *said.handed]) if said.handed else said.text)
        found = self._passages.of_reply(cut(text, _SEEN_BYTES), _scope(tenant))
        if not found:
            return
        self._waiting.append(_Waiting(found, talk, reply, workflow, tenant))
        self._waiting_bytes += len(found) + talk.size_bytes
        if len(self._waiting) >= _MAX_WAITING or self._waiting_bytes >= _MAX_WAITING_BYTES:
            self._settle()

    def count_carried(self, talk: Conversation, tenant: str) -> Mapping[int, int]:
        """Return how many passages of each reply are in a conversation's new messages."""
        scope = _scope(tenant)
        told = [_encoded(message.text) for message in talk.new]
        if sum(map(len, told)) + len(told) - 1 > _SEEN_BYTES:
            found = self._passages.passages_of([cut(b"\n".join(told), _SEEN_BYTES)])
        else:
            parts = talk.parts_at([message.at for message in talk.new])
            found = self._passages_of(talk, parts, tenant)
        together = found[0] if len(found) == 1 else b"".join(found)
        carried = self._passages.count_carried(together, scope)
        if carried is None:
            self._settle()
            carried = self._passages.count_carried(together, scope)
        assert carried is not None, "nothing waits"
        return carried

    def _settle(self) -> None:
        """Store the buffered passages."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._passages.clear_waiting()
        for each in waiting:
            prompt = b"".join(self._passages_of(each.talk, each.talk.parts(), each.tenant))
            numbers = each.reply, each.workflow, _scope(each.tenant)
            self._passages.remember(each.passages, *numbers, prompt)

    def _passages_of(
        self, talk: Conversation, parts: Mapping[int, int], tenant: str
    ) -> list[Hashes]:
        """Return the passages of some messages, given as their keys and places."""
        read = self._read.get(tenant)
        if read is None:
            read = self._read[tenant] = OrderedDict()
        found = [*map(read.get, parts)]
        known: list[Hashes] = []
        missing: list[int] = []
        for key, hashes in zip(parts, found, strict=True):
            if hashes is None:
                missing.append(key)
            else:
                read.move_to_end(key)
                known.append(hashes)
        if missing:
            new = self._passages.passages_of(
                [_encoded(talk.text_at(parts[key])) for key in missing]
            )
            read.update(zip(missing, new, strict=True))
            self._make_room(tenant, sum(map(len, new)) + len(new) * _ENTRY_BYTES)
            known += new
        return known

    def _make_room(self, tenant: str, added_bytes: int) -> None:
        """Count added bytes of the tenant; over the limit, evict from the largest tenant."""
        held = self._read_bytes
        held.add(tenant, added_bytes)
        while held.total > _MAX_READ_BYTES:
            giver = held.gives_way(tenant)
            _, oldest = self._read[giver].popitem(last=False)
            held.add(giver, -len(oldest) - _ENTRY_BYTES)
            if not self._read[giver]:
                del self._read[giver]


def _scope(tenant: str) -> int:
    """Return the number that separates a tenant's passages from all others."""
    return hash(tenant) & 0xFFFFFFFF


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
