"""Inference of a call's agent, workflow and parents from what it shares with earlier calls.

An agent is recognised by its system prompt and its tools. A call follows from the replies that it
carries: it brings the results of tool calls that one requested, continues one's conversation, or
passes on one's text. If its workflow is declared, they are searched among that workflow's last
replies. If not, the workflow is inferred from them: the strongest evidence counts, and if that
points to several workflows, or none, the call begins its own. A wrong guess harms the order, so
uncertain calls stay alone. All memory is bounded; the work for a call does not grow with its
history, except that each byte is hashed once. Not in the paper.
"""

from collections.abc import Iterable, Sequence, Set

from kairos.core import PARENTS_LIMIT, SharedLru
from kairos.request.identity.answered_calls import AnsweredCall, Replied, Replies, UnnamedCall
from kairos.request.identity.conversation import Conversation, Prompt, PromptMessage, conversation
from kairos.request.identity.engine_reply import MAX_ANSWER_BYTES, Reply, reply_of
from kairos.request.identity.fingerprint import Fingerprints
from kairos.request.identity.identity import Identity
from kairos.request.identity.parts import Parts

_MAX_CLUES = 131_072
_MIN_TEXT = 16  # characters; a shorter reply is one that many calls have
_MIN_JOINED = 24  # of a branch's reply by which a join is known
_LEAST = 3  # passages of a reply
_NUMBERS = (1 << 62) - 1  # those of workflows


class Inference:
    def __init__(self) -> None:
        self._fingerprints = Fingerprints()
        self._replies = Replies()
        self._parts = Parts()
        # By hash of what a reply can be known by: its workflow; None: several have it.
        self._clues: SharedLru[int, str | None] = SharedLru(_MAX_CLUES)

    def infer_fields(self, identity: Identity, prompt: Prompt, tenant: str) -> UnnamedCall | None:
        """Infer fields of a new call from its prompt.

        None: nothing is known of it, and nothing can be inferred from its answer.
        """
        is_said = identity.workflow_id is not None
        led_to = identity.upstream is not None or identity.parent_ids
        talk, begins = None, 0
        follows: tuple[str, ...] = ()
        if not (is_said and led_to and identity.agent is not None):
            talk = conversation(prompt)
            if talk is not None:
                begins = self._infer(identity, talk, tenant)
            elif not is_said:
                return None
        elif not identity.parent_ids:
            follows = self._add_joined(identity, prompt, tenant)
        return UnnamedCall(
            tenant=tenant,
            workflow_id=identity.workflow_id,
            agent=identity.agent,
            upstream=identity.upstream,
            parent_ids=identity.parent_ids or follows,
            talk=None if is_said else talk,
            begins=begins,
        )

    def _infer(self, identity: Identity, talk: Conversation, tenant: str) -> int:
        """Infer from a conversation. Return the hash of all messages, if it is needed later."""
        identity.learn("agent", self._fingerprints.name(talk, tenant), "inferred")
        begins = 0
        in_part: Sequence[Replied] = ()
        if identity.workflow_id is None:
            before, begins = _hashes(talk)
            workflows = self._exact(talk, before, tenant)
            if not workflows:
                in_part = self._in_part(talk, tenant)
                workflows = {each.workflow_id for each in in_part}
            if len(workflows) == 1:
                identity.learn("workflow_id", workflows.pop(), "inferred")
        if identity.workflow_id is not None and not identity.parent_ids:
            carried = _carried(talk, self._replies.of_workflow(tenant, identity.workflow_id))
            carried += [each for each in in_part if each not in carried]
            if identity.upstream is not None:
                carried = [each for each in carried if each.agent == identity.upstream]
            if nearest := self._replies.nearest(carried):
                identity.parent_ids = tuple(each.request_id for each in nearest[:PARENTS_LIMIT])
                identity.learn("upstream", nearest[0].agent, "inferred")
        return begins

    def _add_joined(self, identity: Identity, prompt: Prompt, tenant: str) -> tuple[str, ...]:
        """Find the branches that a call joins, which names one, by the replies that it carries.

        A call that has the text of a branch's reply has waited for it. Only where other replies of
        the workflow led to no call yet. Short texts, and texts of two replies, prove nothing.
        Return the requests that the call is known to have waited for.
        """
        assert identity.workflow_id is not None, "it is said"
        replies = self._replies.of_workflow(tenant, identity.workflow_id)
        named = next((e for e in reversed(replies) if e.agent == identity.upstream), None)
        ends = _unfollowed(replies)
        if named is None or all(each is named for each in ends):
            return ()
        talk = conversation(prompt)
        if talk is None:
            return ()
        told = _told(talk.new)
        carried = [each for each in ends if each is named or _has_own_text(each, replies, told)]
        if named not in carried:
            carried.append(named)
        nearest = self._replies.nearest(carried)
        follows = tuple(each.request_id for each in nearest[:PARENTS_LIMIT])
        if len(nearest) > 1 and named in nearest:
            identity.parent_ids = follows
        return follows

    def remember_answer(
        self, asked: UnnamedCall, request_id: str, answer: bytes | bytearray, *, streamed: bool
    ) -> None:
        """Remember an answer; `streamed`: as server-sent events.

        If the call's workflow was declared, the answer is stored unparsed, and parsed when a later
        call of that workflow has to be matched.
        """
        if not 0 < len(answer) <= MAX_ANSWER_BYTES:
            return
        said = None if asked.talk is None else reply_of(answer, streamed=streamed)
        answered = said or AnsweredCall(bytes(answer), streamed)
        replied = self._replies.add_reply(request_id, asked, answered)
        if asked.talk is not None and said is not None:
            self._remember(_clues(said, asked), replied.workflow_id, asked.tenant)
            workflow = hash(replied.workflow_id) & _NUMBERS
            self._parts.buffer_reply(said, asked.talk, replied.number, workflow, asked.tenant)

    def _remember(self, clues: Iterable[int], workflow_id: str, tenant: str) -> None:
        known = self._clues
        for clue in clues:
            is_common = clue in known and known.get(clue) != workflow_id
            known.put(tenant, clue, None if is_common else workflow_id)

    def _exact(self, talk: Conversation, before: int, tenant: str) -> set[str]:
        """Return the workflows for which the strongest evidence is about whole replies."""
        return (
            self._known(_results(talk, tenant))
            or self._known(_continued(talk, before, tenant))
            or self._known(_repeated(talk, tenant))
        )

    def _known(self, clues: Iterable[int]) -> set[str]:
        known = self._clues
        return {each for clue in clues if (each := known.get(clue)) is not None}

    def _in_part(self, talk: Conversation, tenant: str) -> list[Replied]:
        """Return the replies with enough passages in the conversation, at any place."""
        passages = self._parts.count_carried(talk, tenant)
        found = [self._replies.numbered(n) for n, times in passages.items() if times >= _LEAST]
        return [each for each in found if each is not None and each.tenant == tenant]


def _unfollowed(replies: Sequence[Replied]) -> list[Replied]:
    """Return the replies that led to no reply of these, by ids or by names."""
    ids: set[str] = set()
    names: set[str | None] = set()
    found = []
    for reply in reversed(replies):
        if reply.request_id not in ids and reply.agent not in names:
            found.append(reply)
        ids.update(reply.parent_ids)
        names.add(reply.upstream)
    return found


def _has_own_text(reply: Replied, replies: Sequence[Replied], told: str) -> bool:
    """Return whether a prompt has a reply's text, which no other reply contains."""
    text = reply.reply.text
    if len(text) < _MIN_JOINED or text not in told:
        return False
    return not any(text in each.reply.text for each in replies if each is not reply)


def _carried(talk: Conversation, replies: Sequence[Replied]) -> list[Replied]:
    """Return the replies among a few that the call follows from, and their ancestors."""
    last, told = talk.last, _told(talk.new)
    answers = {each for message in talk.new for each in message.answers} | {talk.previous}
    found = [each for each in replies if _leads_to(each.reply, answers, told)]
    if last is not None and last.text and last.text not in told:
        same = (each for each in reversed(replies) if _begins(last.text, each.reply.text))
        found += [each for each in [next(same, None)] if each is not None and each not in found]
    return found


def _leads_to(reply: Reply, answers: Set[str | None], told: str) -> bool:
    if not answers.isdisjoint(reply.ids):
        return True
    if len(reply.text) >= _MIN_TEXT and reply.text in told:
        return True
    return any(len(text) >= _MIN_TEXT and text in told for text in reply.handed)


def _begins(text: str, beginning: str) -> bool:
    return bool(beginning) and text.startswith(beginning)


def _results(talk: Conversation, tenant: str) -> list[int]:
    """Return clues from results of tool calls, and from the named previous response."""
    ids = [each for message in talk.new for each in message.answers]
    if talk.previous is not None:
        ids.append(talk.previous)
    return [hash((tenant, "id", each)) for each in ids]


def _continued(talk: Conversation, before: int, tenant: str) -> list[int]:
    """Return the clue from the last reply, together with the messages before it."""
    return [] if talk.last is None else [hash((tenant, "next", before, talk.last.text))]


def _repeated(talk: Conversation, tenant: str) -> list[int]:
    """Return clues from messages that are another call's whole reply."""
    texts = [message.text for message in talk.tail()]
    return [hash((tenant, "text", each)) for each in texts if len(each) >= _MIN_TEXT]


def _clues(reply: Reply, asked: UnnamedCall) -> list[int]:
    tenant, texts = asked.tenant, (reply.text, *reply.handed)
    clues = [hash((tenant, "text", each)) for each in texts if len(each) >= _MIN_TEXT]
    clues += [hash((tenant, "id", each)) for each in reply.ids]
    if reply.text:
        clues.append(hash((tenant, "next", asked.begins, reply.text)))
    return clues


def _told(messages: Iterable[PromptMessage]) -> str:
    return "\n".join(message.text for message in messages)


def _hashes(talk: Conversation) -> tuple[int, int]:
    """Return hashes of the messages before the last reply, and of all messages."""
    keys = talk.keys()
    whole = hash(tuple(keys))
    return whole if talk.last is None else hash(tuple(keys[: talk.last.at])), whole
