"""Recently answered calls, and the texts and ids by which their replies are recognised."""

from collections import deque
from collections.abc import Collection, Sequence
from itertools import count

import msgspec

from kairos.core import SharedLru
from kairos.request.identity.conversation import Conversation
from kairos.request.identity.engine_reply import Reply, reply_of

_MAX_REPLIES = 32_768
_MAX_OF_WORKFLOW = 64  # the last
_KEPT = 512  # characters of a text
_MAX_HANDED = 16  # texts that a reply passes to tools
_MAX_UNREAD_BYTES = 64 << 20
_MAX_HOPS = 16  # from a reply back to those that led to it


class UnnamedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for its answer, by which later calls will be recognised."""

    tenant: str
    workflow_id: str | None  # None: it begins one
    agent: str | None
    upstream: str | None
    parent_ids: tuple[str, ...]
    talk: Conversation | None  # None: its workflow was said, as that of what follows will be
    begins: int = 0  # hash of all its messages


class AnsweredCall(msgspec.Struct, frozen=True):
    """An engine's answer that has not been parsed yet."""

    content: bytes
    streamed: bool


class Replied(msgspec.Struct, kw_only=True, gc=False):
    number: int  # in order of the answers
    request_id: str
    tenant: str
    workflow_id: str
    agent: str | None
    upstream: str | None
    parent_ids: tuple[str, ...]
    said: Reply | AnsweredCall  # of its texts, how they begin; of an answer, all

    @property
    def reply(self) -> Reply:
        """The reply, parsed on first use."""
        if isinstance(self.said, AnsweredCall):
            read = reply_of(self.said.content, streamed=self.said.streamed)
            self.said = _beginning(read) if read is not None else _NOTHING
        return self.said


_NOTHING = Reply("")


def _beginning(reply: Reply) -> Reply:
    if len(reply.text) <= _KEPT and not reply.handed:
        return reply
    handed = tuple(text[:_KEPT] for text in reply.handed[:_MAX_HANDED])
    return Reply(reply.text[:_KEPT], reply.ids, handed)


class Replies:
    """Replies by call. Over the limit, the tenant with most loses its oldest first."""

    def __init__(self) -> None:
        self._by_number: SharedLru[int, Replied] = SharedLru(_MAX_REPLIES)
        self._by_id: dict[tuple[str, str], Replied] = {}  # and by tenant, as clients choose ids
        self._of_workflow: dict[tuple[str, str], deque[Replied]] = {}  # by tenant and id
        # Those whose answers were kept as they came, with their size: what is read meanwhile is
        # still counted.
        self._unread: SharedLru[int, Replied] = SharedLru(_MAX_UNREAD_BYTES)
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._by_number)

    def add_reply(self, request_id: str, asked: UnnamedCall, said: Reply | AnsweredCall) -> Replied:
        tenant, workflow_id = asked.tenant, asked.workflow_id or request_id
        replied = Replied(
            number=next(self._numbers),
            request_id=request_id,
            tenant=tenant,
            workflow_id=workflow_id,
            agent=asked.agent,
            upstream=asked.upstream,
            parent_ids=asked.parent_ids,
            said=_beginning(said) if isinstance(said, Reply) else said,
        )
        if isinstance(said, AnsweredCall):
            self._keep_unread(replied, len(said.content))
        for _, oldest in self._by_number.put(tenant, replied.number, replied):
            self._forget(oldest)
        self._by_id[tenant, request_id] = replied
        key = tenant, workflow_id
        of_workflow = self._of_workflow.get(key)
        if of_workflow is None:
            of_workflow = self._of_workflow[key] = deque(maxlen=_MAX_OF_WORKFLOW)
        of_workflow.append(replied)
        return replied

    def _keep_unread(self, replied: Replied, size_bytes: int) -> None:
        """Keep an unparsed answer; over the limit the content of the oldest is dropped."""
        for _, oldest in self._unread.put(replied.tenant, replied.number, replied, size_bytes):
            if isinstance(oldest.said, AnsweredCall):
                oldest.said = _NOTHING

    def _forget(self, oldest: Replied) -> None:
        self._unread.remove(oldest.tenant, oldest.number)
        if self._by_id[oldest.tenant, oldest.request_id] is oldest:
            del self._by_id[oldest.tenant, oldest.request_id]
        of_workflow = self._of_workflow[oldest.tenant, oldest.workflow_id]
        if of_workflow[0] is oldest:
            of_workflow.popleft()
        if not of_workflow:
            del self._of_workflow[oldest.tenant, oldest.workflow_id]

    def of_workflow(self, tenant: str, workflow_id: str) -> Sequence[Replied]:
        """Return the last replies of a workflow, in order."""
        return self._of_workflow.get((tenant, workflow_id), ())

    def numbered(self, number: int) -> Replied | None:
        return self._by_number.get(number)

    def nearest(self, found: Collection[Replied]) -> list[Replied]:
        """Return the replies that led to no other of them, latest first.

        Links are by id or, where no ids are known, by agents' names.
        """
        before: set[tuple[str, str]] = set()
        ids = {each for replied in found for each in self._parents(replied)}
        for _ in range(_MAX_HOPS):
            if not ids:
                break
            before |= ids
            known = [self._by_id[each] for each in ids if each in self._by_id]
            ids = {each for replied in known for each in self._parents(replied)} - before
        nearest = [each for each in found if (each.tenant, each.request_id) not in before]
        return sorted(nearest, key=lambda each: -each.number)

    def _parents(self, replied: Replied) -> Sequence[tuple[str, str]]:
        """Return tenants and ids of the calls that led to a reply."""
        tenant = replied.tenant
        if replied.parent_ids or replied.upstream is None:
            return [(tenant, each) for each in replied.parent_ids]
        return [
            (tenant, each.request_id)
            for each in self.of_workflow(replied.tenant, replied.workflow_id)
            if each.agent == replied.upstream and each.number < replied.number
        ]
