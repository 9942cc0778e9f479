"""What a call that does not say who makes it has in common with earlier ones.

An agent is known by its system prompt and its tools. A call belongs to the workflow whose replies
it carries: it brings the results of tool calls that one asked for, goes on with one's conversation,
or hands on what one said. Those replies are what led to it. Of all evidence the strongest counts;
where that speaks for several workflows, or none, the call begins one of its own: to be wrong costs
order, so what is uncertain stays alone. All that is remembered is bounded; what is looked up for a
call does not grow with its history, of which each byte is hashed once. Ours.
"""

import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

import msgspec

from kairos.live.identity.conversation import Conversation, Message, Reply, texts
from kairos.live.identity.fingerprint import Fingerprints
from kairos.live.identity.known import Identity
from kairos.live.identity.passages import Passages
from kairos.model import PARENTS_LIMIT

_MAX_REPLIES = 32_768
_MAX_CLUES = 131_072
_MIN_TEXT = 16  # characters; a shorter reply is one that many calls have
_KEPT = 512  # characters of a reply, of the last so many of a workflow
_MAX_SIBLINGS = 64
_MIN_PASSAGES = 3
_MAX_PROMPT_BYTES = 65_536  # in which a reply's passages are looked for
_MAX_HOPS = 16  # from a reply back to those that led to it


class _Replied(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was answered."""

    number: int
    request_id: str
    workflow_id: str
    scope: int
    agent: str | None
    parent_ids: tuple[str, ...]
    text: str  # how its reply begins


class Asked(msgspec.Struct, frozen=True):
    """A call that waits for its answer, by which others will be known to follow from it."""

    workflow_id: str | None  # None: it begins one
    agent: str | None
    parent_ids: tuple[str, ...]
    scope: int
    conversation: Conversation
    begins: int  # hash of all its messages


class Inference:
    def __init__(self) -> None:
        self._fingerprints = Fingerprints()
        self._passages = Passages()
        self._by_id: dict[str, _Replied] = {}
        self._by_number: OrderedDict[int, _Replied] = OrderedDict()
        self._numbers = count(1)
        self._of_workflow: dict[tuple[int, str], deque[_Replied]] = {}  # by scope and id
        # By hash of what a reply can be known by: the call that it answered; None: several have it.
        self._clues: OrderedDict[int, _Replied | None] = OrderedDict()

    def add(self, identity: Identity, talk: Conversation, tenant: str) -> Asked:
        """Add to what is known of a call that just came. Where its workflow is known, what led to
        it is looked for there alone."""
        identity.learn("agent", self._fingerprints.name(talk.system, talk.tools), "inferred")
        scope = _hash(tenant, identity.workflow_id or "") >> 1
        before, begins = _hashes(talk)
        led_to: list[_Replied] = []
        if not identity.parent_ids:
            led_to = self._led_to(talk, before, scope, identity.workflow_id)
        if identity.upstream is not None:
            led_to = [each for each in led_to if each.agent == identity.upstream]
        if led_to:
            identity.learn("workflow_id", led_to[0].workflow_id, "inferred")
            identity.learn("upstream", led_to[0].agent, "inferred")
            identity.parent_ids = tuple(each.request_id for each in led_to[:PARENTS_LIMIT])
        return Asked(
            workflow_id=identity.workflow_id,
            agent=identity.agent,
            parent_ids=identity.parent_ids,
            scope=scope,
            conversation=talk,
            begins=begins,
        )

    def answered(self, asked: Asked, request_id: str, reply: Reply) -> None:
        number, workflow_id = next(self._numbers), asked.workflow_id or request_id
        replied = _Replied(
            number=number,
            request_id=request_id,
            workflow_id=workflow_id,
            scope=asked.scope,
            agent=asked.agent,
            parent_ids=asked.parent_ids,
            text=reply.text[:_KEPT],
        )
        self._by_number[number] = self._by_id[request_id] = replied
        of_workflow = self._of_workflow.setdefault(
            (asked.scope, workflow_id), deque(maxlen=_MAX_SIBLINGS)
        )
        of_workflow.append(replied)
        if len(self._by_number) > _MAX_REPLIES:
            self._forget(self._by_number.popitem(last=False)[1])
        for clue in _clues(reply, asked):
            self._remember(clue, replied)
        self._passages.remember(
            reply.text.encode("utf-8", "replace"),
            number,
            _hash(workflow_id) >> 2,
            asked.scope,
            _prompt(asked.conversation),
        )

    def _remember(self, clue: int, replied: _Replied) -> None:
        known = self._clues.get(clue, replied)
        is_common = known is None or known.workflow_id != replied.workflow_id
        self._clues[clue] = None if is_common else replied
        self._clues.move_to_end(clue)
        if len(self._clues) > _MAX_CLUES:
            self._clues.popitem(last=False)

    def _forget(self, replied: _Replied) -> None:
        """The one that is remembered for longest."""
        if self._by_id[replied.request_id] is replied:
            del self._by_id[replied.request_id]
        of_workflow = self._of_workflow[replied.scope, replied.workflow_id]
        if of_workflow[0] is replied:
            of_workflow.popleft()
        if not of_workflow:
            del self._of_workflow[replied.scope, replied.workflow_id]

    def _led_to(
        self, talk: Conversation, before: int, scope: int, workflow_id: str | None
    ) -> list[_Replied]:
        """The replies that it carries, of one workflow; the latest first."""
        new = _new(talk.tail)
        told = "\n".join(message.text for message in new)
        evidence = [
            self._known(_results(talk, new, scope)),
            self._known(_continued(talk, before, scope)),
            self._known(_repeated(talk, scope)),
            self._carried(told, scope),
        ]
        if workflow_id is None:
            strongest = next((each for each in evidence if each), [])
            workflows = {each.workflow_id for each in strongest}
            if len(workflows) != 1:
                return []
            [workflow_id] = workflows
        replies = self._of_workflow.get((scope, workflow_id), ())
        # Among a few, a short reply is evidence too.
        evidence.append([r for r in replies if len(r.text) >= _MIN_TEXT and r.text in told])
        found = {
            each.request_id: each
            for some in evidence
            for each in some
            if each.workflow_id == workflow_id
        }
        return self._nearest(found)

    def _known(self, clues: Iterable[int]) -> list[_Replied]:
        found = [self._clues.get(clue) for clue in clues]
        return [each for each in found if each is not None]

    def _carried(self, told: str, scope: int) -> list[_Replied]:
        passages = self._passages.carried(told.encode("utf-8", "replace"), scope)
        found = [self._by_number.get(n) for n, times in passages.items() if times >= _MIN_PASSAGES]
        return [each for each in found if each is not None]

    def _nearest(self, found: Mapping[str, _Replied]) -> list[_Replied]:
        """Without those that led to others of them."""
        before: set[str] = set()
        ids = {each for replied in found.values() for each in replied.parent_ids}
        for _ in range(_MAX_HOPS):
            before |= ids
            known = [self._by_id[each] for each in ids if each in self._by_id]
            ids = {each for replied in known for each in replied.parent_ids} - before
        nearest = [each for name, each in found.items() if name not in before]
        return sorted(nearest, key=lambda each: -each.number)


def _results(talk: Conversation, new: Sequence[Message], scope: int) -> Iterator[int]:
    """Of tool calls that a reply asked for; and the reply that it says it goes on from."""
    for message in new:
        if message.answers is not None:
            yield _hash(scope, "id", message.answers)
    if talk.previous is not None:
        yield _hash(scope, "id", talk.previous)


def _continued(talk: Conversation, before: int, scope: int) -> Iterator[int]:
    """The last reply in it, behind the messages that it answered."""
    last = _last_reply(talk.tail)
    if last is not None:
        yield _hash(scope, "next", before, last.text)


def _repeated(talk: Conversation, scope: int) -> Iterator[int]:
    """What is another's reply from beginning to end."""
    for message in talk.tail:
        if len(message.text) >= _MIN_TEXT:
            yield _hash(scope, "text", message.text)


def _last_reply(tail: Sequence[Message]) -> Message | None:
    """That the client gives back."""
    return next((message for message in reversed(tail) if message.is_reply), None)


def _new(tail: Sequence[Message]) -> Sequence[Message]:
    """What came after that."""
    last = _last_reply(tail)
    return tail if last is None else [each for each in tail if each.at > last.at]


def _prompt(talk: Conversation) -> bytes:
    said = b"\0".join(text.encode("utf-8", "replace") for text in texts(talk))
    return said[-_MAX_PROMPT_BYTES:]


def _clues(reply: Reply, asked: Asked) -> Iterator[int]:
    for each in reply.ids:
        yield _hash(asked.scope, "id", each)
    if reply.text:
        yield _hash(asked.scope, "next", asked.begins, reply.text)
    if len(reply.text) >= _MIN_TEXT:
        yield _hash(asked.scope, "text", reply.text)


def _hashes(talk: Conversation) -> tuple[int, int]:
    """Of all messages before the last reply that the client gives back, and of all."""
    last = _last_reply(talk.tail)
    at = len(talk.raw) if last is None else last.at
    running = hashlib.blake2b(digest_size=8)
    for each in talk.raw[:at]:
        running.update(each)
    before = running.digest()
    for each in talk.raw[at:]:
        running.update(each)
    return int.from_bytes(before), int.from_bytes(running.digest())


def _hash(*parts: object) -> int:
    return hash(parts) & ((1 << 64) - 1)
