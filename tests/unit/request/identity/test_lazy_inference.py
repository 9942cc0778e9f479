"""What is put off until somebody asks for it is found as if it had been done at once."""

import json
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kairos.core import Holdings
from kairos.request import Identity, Inference
from kairos.request.identity import answered_calls, conversation, parts, passages
from kairos.request.identity.conversation import prompt_of
from kairos.request.identity.engine_reply import reply_of
from kairos.request.identity.fingerprint import Fingerprints
from tests.support.examples import examples
from tests.unit.request.identity.test_inference import Run, Wire, said, words


class Eager(Inference):
    """Reads each answer when it comes, and remembers nothing of what it read for another call."""

    def remember_answer(self, asked, request_id, answer, *, streamed):
        super().remember_answer(asked, request_id, answer, streamed=streamed)
        for replied in self._replies._by_number.values():
            assert replied.reply is not None
        self._parts._settle()
        self._parts._read.clear()
        self._parts._read_bytes = Holdings()
        self._fingerprints = Fingerprints()


class NamedRun(Run):
    """One that says its workflow, and now and then who led to the call."""

    def __init__(self, wire, random, vocabulary, name):
        super().__init__(wire, random, vocabulary)
        self.wire, self.known = self, {"workflow_id": name}
        self.to = wire

    def ask(self, messages):
        known = dict(self.known)
        if self.random.random() < 0.5:
            known |= {"agent": "a", "upstream": "b"}
        return self.to.ask(messages, **known)


def play(inference, seed, texts):
    """The identities of all calls."""
    wire, random = Wire(), Random(seed)
    wire.inference = inference
    vocabulary = [words(random, random.choice([3, 30, 200])) for _ in range(texts)]
    runs = [Run(wire, random, vocabulary) for _ in range(3)]
    runs += [NamedRun(wire, random, vocabulary, f"wf-{n}") for n in range(2)]
    for _ in range(40):
        random.choice(runs).step()
    return [call.identity for run in runs for call in run.calls]


@examples(40)
@given(st.integers(0, 1 << 30), st.sampled_from([4, 20, 500]))
def test_what_is_put_off_is_found_as_if_it_had_been_done_at_once(seed, texts):
    # Tool calls have ids of chance, the same ones in both.
    assert play(Inference(), seed, texts) == play(Eager(), seed, texts)


@examples(20)
@given(st.integers(0, 1 << 30), st.sampled_from([4, 20, 500]))
def test_numpy_finds_what_the_compiled_functions_find(reading, seed, texts):
    compiled, by_numpy = Inference(), Inference()
    compiled._parts._passages = passages.CompiledPassages(reading)
    by_numpy._parts._passages = passages.Passages()

    assert play(compiled, seed, texts) == play(by_numpy, seed, texts)


def test_answers_that_nobody_read_are_bounded_and_the_oldest_forgotten(monkeypatch):
    monkeypatch.setattr(answered_calls, "_MAX_UNREAD_BYTES", 3_000)
    wire, random = Wire(), Random(7)
    texts = [words(random, 100) for _ in range(20)]
    named = {"workflow_id": "wf", "agent": "a", "upstream": "user"}
    calls = [wire.ask([said("user", "Plan.")], **named) for _ in texts]
    for call, text in zip(calls, texts, strict=True):
        call.answer(text)

    kept = wire.inference._replies
    unread = [
        r for r in kept._by_number.values() if isinstance(r.said, answered_calls.AnsweredCall)
    ]
    assert 0 < sum(len(r.said.content) for r in unread) <= kept._unread.weight <= 3_000
    assert len(kept) == 20
    oldest, newest = (
        wire.ask([said("user", f"Do: {texts[n]}")], workflow_id="wf") for n in (0, -1)
    )
    assert (oldest.identity.parent_ids, newest.identity.parent_ids) == ((), (calls[-1].id,))


def test_what_waits_to_be_read_is_bounded_in_number_and_size(monkeypatch):
    wire, random = Wire(), Random(7)
    waiting = wire.inference._parts._waiting
    for number in range(100):
        call = wire.ask([said("user", f"{number}")], tenant=f"t-{number}")
        call.answer(words(random))
        waiting = wire.inference._parts._waiting
        assert len(waiting) < parts._MAX_WAITING
    talk = [said("user", "x" * 3_000)]
    monkeypatch.setattr(parts, "_MAX_WAITING_BYTES", 5_000)
    for call in [wire.ask(talk) for _ in range(5)]:
        call.answer("Yes.")
        assert wire.inference._parts._waiting_bytes < 5_000


def test_passages_that_were_read_are_bounded_in_size_and_found_again_where_forgotten(monkeypatch):
    monkeypatch.setattr(parts, "_MAX_READ_BYTES", 4_000)
    wire, random = Wire(), Random(7)
    for _ in range(20):
        planner = wire.ask([said("user", words(random, 100))])
        text = words(random, 100)
        planner.answer(text)
        worker = wire.ask([said("user", f"Do: {text[50:500]}")])
        assert worker.workflow == planner.id
        kept = wire.inference._parts
        sizes = [len(hashes) + parts._ENTRY_BYTES for hashes in kept._read["acme"].values()]
        assert 0 < sum(sizes) == kept._read_bytes.total <= 4_000


pieces = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    ['"', "\\", '\\"', '"content":"', "\n\ndata: ", '"},"finish_reason":null}]}', "é\u2028"]
)


def event(delta, end):
    body = {"id": "c-1", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + end


@given(
    st.lists(
        st.fixed_dictionaries({"content": pieces})
        | st.fixed_dictionaries({"role": st.just("assistant"), "content": pieces})
        | st.builds(
            lambda text: {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}, pieces
        ),
        max_size=12,
    ),
    st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n\r\n"]),
)
@example(
    [{"content": "", "role": "assistant"}, *2 * [{"role": "assistant", "content": "0"}]], b"\n\n"
)
def test_a_stream_is_read_as_if_each_of_its_events_were(deltas, end):
    stream = b"".join(event(delta, end) for delta in deltas) + b"data: [DONE]" + end
    read = reply_of(stream, streamed=True)
    lines = [line[6:] for line in stream.splitlines() if line.startswith(b"data: {")]
    text = "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines)
    assert read.text == text.strip()


def test_of_a_long_prompt_the_first_and_the_last_messages_are_read():
    messages = [said("user", f"{n} " + "x" * 2_000) for n in range(100)]
    messages.insert(0, said("system", "Count."))
    talk = conversation.conversation(prompt_of(json.dumps({"messages": messages}).encode()))
    *texts, system = map(talk.text_at, talk.parts().values())
    numbers = [int(text.split()[0]) for text in texts]
    assert system == "Count."
    assert numbers == [*range(9), *range(91, 100)] or (numbers[0], numbers[-1]) == (0, 99)
    assert 32_768 <= sum(map(len, texts)) <= 32_768 + 3 * 2_100


@pytest.mark.parametrize("tools_bytes", [0, 20_000, 40_000])
def test_of_a_short_prompt_all_messages_are_read_whatever_comes_beside_it(tools_bytes):
    messages = [said("user", f"{n} " + "x" * 2_000) for n in range(3)]
    tools = [{"type": "function", "function": {"name": "t", "description": "y" * tools_bytes}}]
    body = json.dumps({"messages": messages, "tools": tools}).encode()
    talk = conversation.conversation(prompt_of(body))
    assert [*talk.parts().values()] == [0, 1, 2]


def test_nothing_known_of_a_body_that_says_nothing():
    assert Inference().infer_fields(Identity(), prompt_of(b"{"), "acme") is None
