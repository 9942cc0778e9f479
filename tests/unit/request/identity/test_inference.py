"""Who calls, and what led to it, inferred from what calls and replies have in common."""

import json
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.request import Identity, Inference
from kairos.request.identity import answered_calls, inference
from kairos.request.identity.conversation import conversation, prompt_of
from kairos.request.identity.engine_reply import reply_of

WORDS = [f"{a}{b}{c}" for a in "btkmslr" for b in "aeiou" for c in ("n", "st", "ck", "m", "rd")]


def words(random, number=30):
    return " ".join(random.choices(WORDS, k=number))


def said(role, content, **fields):
    return {"role": role, "content": content, **fields}


class Wire:
    """Calls as an engine's clients make them, and as it answers them."""

    def __init__(self):
        self.inference, self._ids = Inference(), count(1)

    def ask(self, messages, *, tenant="acme", tools=(), **known):
        """What is found of a call, under its id; not answered yet."""
        body = {"model": "m", "messages": messages}
        if tools:
            body["tools"] = [{"type": "function", "function": {"name": each}} for each in tools]
        return self.send(body, tenant=tenant, **known)

    def send(self, body, *, tenant="acme", **known):
        identity = Identity(**known)
        asked = self.inference.infer_fields(identity, prompt_of(json.dumps(body).encode()), tenant)
        return Made(self, f"req-{next(self._ids)}", identity, asked)


class Made:
    def __init__(self, wire, request_id, identity, asked):
        self.wire, self.id, self.identity, self.asked = wire, request_id, identity, asked

    @property
    def workflow(self):
        return self.identity.workflow_id or self.id

    def answer(self, text="", calls=(), arguments="{}"):
        """The message that its client gets."""
        message = said("assistant", text or None)
        if calls:
            message["tool_calls"] = [
                {"id": each, "type": "function", "function": {"name": "f", "arguments": arguments}}
                for each in calls
            ]
        body = {"id": "chatcmpl-1", "choices": [{"index": 0, "message": message}]}
        self.give(json.dumps(body).encode(), streamed=False)
        return message

    def give(self, answer, *, streamed):
        self.wire.inference.remember_answer(self.asked, self.id, answer, streamed=streamed)


@pytest.fixture
def wire():
    return Wire()


@pytest.fixture
def random():
    return Random(7)


def test_two_conversations_that_went_the_same_way_are_not_told_apart_and_stay_alone(wire):
    talk = [said("user", "Hi")]
    calls = [wire.ask(talk), wire.ask(talk)]
    replies = [call.answer("Hello, what can I do for you today?") for call in calls]

    later = [wire.ask([*talk, each, said("user", "Nothing.")]) for each in replies]

    assert [each.identity.workflow_id for each in later] == [None, None]


def test_part_of_a_long_reply_leads_to_the_call(wire, random):
    planner = wire.ask([said("user", "Plan.")])
    steps = [words(random, 40) for _ in range(20)]
    planner.answer("\n\n".join(steps))

    worker = wire.ask([said("user", "Do this: " + "\n\n".join(steps[4:10]))])

    assert worker.identity.parent_ids == (planner.id,)


def test_a_join_follows_from_all_that_it_carries_but_not_from_what_led_to_these(wire, random):
    planner = wire.ask([said("user", "Plan.")])
    plan = planner.answer(words(random))["content"]
    branches = [wire.ask([said("user", f"{each}: {plan}")]) for each in ("Left", "Right")]
    left, right = (each.answer(words(random))["content"] for each in branches)

    join = wire.ask([said("user", f"{plan}\n1. {left}\n2. {right}")])

    assert join.workflow == planner.id
    assert set(join.identity.parent_ids) == {each.id for each in branches}


def test_what_a_reply_quotes_from_its_prompt_leads_nowhere(wire, random):
    document = words(random, 60)
    first = wire.ask([said("user", f"Summarise: {document}")])
    first.answer(document)

    other = wire.ask([said("user", f"Translate: {document}")])

    assert other.identity.workflow_id is None


@given(st.integers(5, 400), st.integers(0, 4), st.integers(0, 1 << 20), st.booleans())
def test_replies_that_differ_but_little_lead_to_their_own_workflow_or_nowhere(n, m, seed, handed):
    random, wire = Random(seed), Wire()
    same = words(random, n)
    texts = [f"{same} {words(random, m)} {end}" for end in ("left", "right")]
    firsts = [wire.ask([said("user", text[-5:])]) for text in texts]
    for first, text in zip(firsts, texts, strict=True):
        first.answer(text)
    for first, text in zip(firsts, texts, strict=True):
        follows = wire.ask([said("user", f"Do: {text}" if handed else text)])

        assert follows.identity.workflow_id in (None, first.id)
        if not handed:
            assert follows.identity.workflow_id == first.id


def test_what_a_call_was_told_nobody_else_is_taken_to_have_from_it(wire, random):
    document = words(random, 2_000)
    first = wire.ask([said("user", f"{document} Which part is best?")])
    first.answer(document[5_000:5_600])

    other = wire.ask([said("user", f"{document} Which part is worst?")])
    other.answer(document[5_000:5_600])

    assert other.identity.workflow_id is None
    assert wire.ask([said("user", document)]).identity.workflow_id is None


def test_the_exact_wins_over_what_looks_alike(wire, random):
    texts = [words(random), words(random)]
    first, second = (wire.ask([said("user", text[:5])]) for text in texts)
    second.answer(texts[1])
    asks = first.answer(texts[0], calls=["call-1"])

    found = wire.ask(
        [said("user", "?"), asks, said("tool", f"Found: {texts[1]}", tool_call_id="call-1")]
    )

    assert found.identity.parent_ids == (first.id,)


def test_within_a_workflow_that_is_known_only_its_own_replies_count(wire, random):
    text = words(random)
    first = wire.ask([said("system", "Plan."), said("user", "Hi")], workflow_id="w-1")
    first.answer(text)
    wire.ask([said("user", "Hi")], workflow_id="w-2").answer(text)
    handed_on = [said("system", "Work."), said("user", f"Do: {text}")]

    ours = wire.ask(handed_on, workflow_id="w-1")

    assert (ours.identity.parent_ids, ours.identity.upstream) == ((first.id,), first.identity.agent)
    assert ours.identity.workflow_id == "w-1"
    assert wire.ask(handed_on, workflow_id="w-3").identity.parent_ids == ()
    assert wire.ask(handed_on).identity.workflow_id is None


def test_what_led_to_a_call_is_followed_back_by_the_names_that_were_said(wire):
    calls, replies = [], []
    for agent, upstream in (("planner", "user"), ("worker", "planner"), ("checker", "worker")):
        call = wire.ask([said("user", "?")], workflow_id="w", agent=agent, upstream=upstream)
        replies.append(call.answer(f"This is what the {agent} says.")["content"])
        calls.append(call)

    join = wire.ask([said("user", f"{replies[0]}\n{replies[2]}")], workflow_id="w", agent="last")

    assert join.identity.parent_ids == (calls[2].id,)


@pytest.mark.parametrize("workflow_id", ["w-1", None])
def test_what_a_reply_hands_to_a_tool_leads_to_the_agent_behind_it(wire, random, workflow_id):
    draft = words(random)
    writer = wire.ask([said("user", "Write.")], workflow_id=workflow_id, agent="writer")
    asks = writer.answer(calls=["call-1"], arguments=json.dumps({"text": draft, "times": 2}))
    checker = wire.ask([said("user", draft)], workflow_id=workflow_id, agent="checker")
    verdict = checker.answer("There is nothing wrong with it.")["content"]

    again = wire.ask(
        [said("user", "Write."), asks, said("tool", verdict, tool_call_id="call-1")],
        workflow_id=workflow_id,
        agent="writer",
    )

    assert checker.identity.parent_ids == (writer.id,)
    assert again.identity.parent_ids == (checker.id,)
    assert again.workflow == writer.workflow


def test_an_upstream_that_was_said_stays(wire, random):
    text = words(random)
    first = wire.ask([said("user", "Hi")], agent="planner")
    first.answer(text)

    named = wire.ask([said("user", text)], upstream="planner")
    other = wire.ask([said("user", text)], upstream="reviewer")

    assert named.identity.parent_ids == (first.id,)
    assert (other.identity.parent_ids, other.identity.upstream) == ((), "reviewer")


def test_a_call_without_system_prompt_and_tools_has_no_agent(wire):
    assert wire.ask([said("user", "x")]).identity.agent is None


def test_replies_are_read_from_streams(wire, random):
    text = words(random)
    first = wire.ask([said("user", "Hi")])
    pieces = [{"content": text[n : n + 7]} for n in range(0, len(text), 7)]
    pieces.append({"tool_calls": [{"index": 0, "id": "call-1", "function": {"name": "f"}}]})
    events = [{"choices": [{"index": 0, "delta": piece}]} for piece in pieces]
    stream = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events)
    first.give(stream + b"data: [DONE]\n\n", streamed=True)

    assert wire.ask([said("user", f"Do: {text}")]).workflow == first.id
    assert wire.ask([said("tool", "1", tool_call_id="call-1")]).workflow == first.id


def test_replies_are_read_from_the_last_event_of_a_stream_of_the_responses_api(wire, random):
    text = words(random)
    first = wire.send({"input": "Hi"})
    output = [{"type": "message", "content": [{"type": "output_text", "text": text}]}]
    event = {"type": "response.completed", "response": {"id": "resp-1", "output": output}}
    first.give(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n", streamed=True)

    assert wire.send({"input": f"Do: {text}"}).workflow == first.id


def test_what_is_remembered_is_bounded(random, monkeypatch):
    monkeypatch.setattr(answered_calls, "_MAX_REPLIES", 3)
    monkeypatch.setattr(inference, "_MAX_CLUES", 5)
    wire = Wire()
    for n in range(10):
        wire.ask([said("user", f"{n}")]).answer(words(random), calls=[f"call-{n}"])

    kept = wire.inference._replies
    assert len(kept) == len(kept._by_id) == sum(map(len, kept._of_workflow.values())) == 3
    assert len(wire.inference._clues) == 5
    forgotten, kept = (
        wire.ask([said("tool", "", tool_call_id=f"call-{n}")]).identity.workflow_id for n in (0, 9)
    )
    assert (forgotten, kept) == (None, "req-10")


@pytest.mark.parametrize(
    "messages",
    [[said("user", "x" * (4 << 20))], [said("user", "x")] * 5_000, [{}] * 200_000, [0] * 400_000],
)
def test_a_very_long_conversation_is_not_looked_at(wire, messages):
    body = json.dumps({"messages": messages}, separators=(",", ":")).encode()

    assert wire.inference.infer_fields(Identity(), prompt_of(body), "acme") is None


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read(content, streamed):
    conversation(prompt_of(content))
    reply_of(content, streamed=streamed)


class Run:
    """One user's task: agents that pass on to each other what they were told, in many ways."""

    def __init__(self, wire, random, vocabulary):
        self.wire, self.random, self.vocabulary = wire, random, vocabulary
        self.question, self.calls, self.texts = f"Why {random.choice('ab')}?", [], []
        self.history = []

    def step(self):
        random = self.random
        kind = random.choice(["hand on", "hand on", "go on", "tool"]) if self.calls else "ask"
        messages = [said("user", self.question)]
        if kind == "hand on":
            chosen = random.sample(self.texts, k=min(len(self.texts), random.choice([1, 2])))
            messages = [said("user", f"{self.question}\n" + "\n--\n".join(chosen))]
        elif kind == "go on" and self.history:
            messages = [*self.history, said("user", "Go on.")]
        elif kind == "tool" and self.history:
            asks = [n["id"] for n in self.history[-1].get("tool_calls", ())]
            messages = self.history + [said("tool", "ok", tool_call_id=n) for n in asks]
        system = said("system", f"You are agent {random.choice('ABC')} of all.")
        call = self.wire.ask([system, *[m for m in messages if m["role"] != "system"]])
        self.calls.append(call)
        ids = [f"call-{random.randrange(1 << 40)}"] if random.random() < 0.4 else []
        reply = call.answer(random.choice(self.vocabulary), ids)
        self.texts.append(reply["content"])
        self.history = [system, *[m for m in messages if m["role"] != "system"], reply]
