"""Which replies a call carries parts of.

A reply waits to be read until a call asks what it carries; then all that wait are read in one pass.
A conversation repeats its messages with each call, so their passages are kept, by what the client
spelt. Messages are read one by one: what spans two of them is no passage.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from kairos.live.request.identity.conversation import Conversation
from kairos.live.request.identity.engine_reply import Reply
from kairos.live.request.identity.passages import Hashes, Passages, cut, passages_of

# Of a reply, or of what is new in a call, that are read: half at its beginning, half at its end.
_SEEN_BYTES = 8192
_MAX_WAITING, _MAX_WAITING_BYTES = 16, 8 << 20  # replies, and what they and their prompts take
_MAX_READ_BYTES = 32 << 20  # passages of messages; those longest unused are forgotten
_ENTRY_BYTES = 256  # what a message takes there beside its passages

Texts = dict[int, tuple[Conversation, int]]  # by hash of a text, where it stands


class _Waiting(msgspec.Struct, frozen=True):
    text: bytes
    talk: Conversation  # what it replied to
    reply: int
    workflow: int
    scope: int


class Parts:
    def __init__(self) -> None:
        self._passages = Passages()
        self._read: OrderedDict[int, Hashes] = OrderedDict()  # messages
        self._read_bytes = 0
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0

    def add(self, said: Reply, talk: Conversation, reply: int, workflow: int, scope: int) -> None:
        """`talk`: what it replied to. Numbers are as `Passages.remember` has them."""
        text = "\n".join([said.text, *said.handed]).encode("utf-8", "replace")
        waiting = _Waiting(cut(text, _SEEN_BYTES), talk, reply, workflow, scope)
        self._waiting.append(waiting)
        self._waiting_bytes += len(waiting.text) + talk.size_bytes
        if len(self._waiting) >= _MAX_WAITING or self._waiting_bytes >= _MAX_WAITING_BYTES:
            self._settle({})

    def carried(self, talk: Conversation, scope: int) -> Counter[int]:
        """By number of a reply, how many of its passages stand in what is new in a conversation."""
        told = "\n".join(message.text for message in talk.new).encode("utf-8", "replace")
        if len(told) > _SEEN_BYTES:
            self._settle({})
            return self._passages.carried(passages_of([cut(told, _SEEN_BYTES)]), scope)
        new = talk.parts_at([message.at for message in talk.new])
        # The rest of its prompt is read in the same pass: its reply will need it.
        known = self._settle(_texts(talk, talk.parts() | new))
        return self._passages.carried([known[key] for key in new], scope) if new else Counter()

    def _settle(self, more: Texts) -> Mapping[int, Hashes]:
        """Read what waits. Returns the passages of its prompts, and of more texts."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        prompts = [each.talk.parts() for each in waiting]
        texts = dict(more)
        for each, prompt in zip(waiting, prompts, strict=True):
            texts.update(_texts(each.talk, prompt))
        known, replies = self._hashes(texts, [each.text for each in waiting])
        for each, prompt, found in zip(waiting, prompts, replies, strict=True):
            in_prompt = [known[key] for key in prompt]
            self._passages.remember(found, each.reply, each.workflow, each.scope, in_prompt)
        return known

    def _hashes(
        self, texts: Texts, replies: Sequence[bytes]
    ) -> tuple[Mapping[int, Hashes], Sequence[Hashes]]:
        known = {key: hashes for key in texts if (hashes := self._read.get(key)) is not None}
        missing = [key for key in texts if key not in known]
        encoded = [
            talk.text_at(place).encode("utf-8", "replace")
            for talk, place in map(texts.__getitem__, missing)
        ]
        found = passages_of([*encoded, *replies])
        for key in known:
            self._read.move_to_end(key)
        for key, hashes in zip(missing, found, strict=False):
            known[key] = self._read[key] = hashes
            self._read_bytes += hashes.nbytes + _ENTRY_BYTES
        while self._read_bytes > _MAX_READ_BYTES:
            self._read_bytes -= self._read.popitem(last=False)[1].nbytes + _ENTRY_BYTES
        return known, found[len(missing) :]


def _texts(talk: Conversation, places: Mapping[int, int]) -> Texts:
    return {key: (talk, place) for key, place in places.items()}
