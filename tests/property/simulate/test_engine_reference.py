"""The engine's model counts what a slow and obvious one does token by token; both must agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import EngineProfile, StepCost
from kairos.simulate.engine.engine import ModelledEngine
from kairos.simulate.engine.sequence import EngineCall
from kairos.simulate.workload.prompt import PromptPiece
from tests.support.examples import examples
from tests.support.simulate.reference_engine import ReferenceEngine

pytestmark = pytest.mark.both

costs = st.sampled_from([0.0, 0.25, 1.0, 3.0, 7.3, 0.000_001])
profiles = st.builds(
    EngineProfile,
    name=st.just("any"),
    source=st.just("a test"),
    measured=st.just(False),
    kv_tokens=st.integers(56, 90),
    block_size=st.sampled_from([1, 2, 3, 4, 8]),
    max_num_seqs=st.sampled_from([1, 3, 6, 12]),
    max_num_batched_tokens=st.sampled_from([1, 4, 7, 12, 30, 100]),
    max_model_len=st.just(52),
    scheduling=st.sampled_from(["fcfs", "priority"]),
    prefix_caching=st.sampled_from([True, True, True, False]),
    call_us=st.sampled_from([0.0, 2.0, 12.7]),
    step=st.builds(
        StepCost,
        fixed_us=st.sampled_from([0.5, 1.0, 2.3, 10.0]),
        weights_us=costs,
        prefill_token_us=costs,
        prefill_seq_us=costs,
        decode_seq_us=costs,
        kv_token_us=costs,
        attention_us=costs,
    ),
)
prompts = st.lists(
    st.builds(PromptPiece, name=st.sampled_from("abcd"), tokens=st.integers(1, 9)),
    min_size=1,
    max_size=3,
).map(tuple)
calls = st.tuples(prompts, st.integers(1, 25), st.integers(0, 2))
added = st.tuples(st.just("add"), st.lists(calls, min_size=1, max_size=5), st.integers(0, 20))
# Where answers are known, prompts begin with what others asked and were answered.
turns = st.tuples(st.sampled_from("ab"), st.sampled_from([3, 5, 9]))
chats = st.lists(turns, min_size=1, max_size=3).map(
    lambda said: tuple(PromptPiece(f"{n}{name}", size) for n, (name, size) in enumerate(said))
)
facts = st.one_of(
    added,
    added,
    added,
    st.tuples(st.just("abort"), st.integers(0, 30), st.integers(0, 40)),
    st.tuples(st.just("slow_down"), st.sampled_from([0.5, 1.0, 1.37, 4.0]), st.integers(0, 40)),
    st.tuples(st.just("advance"), st.none(), st.integers(0, 90)),
    st.tuples(st.just("wake_up"), st.none(), st.just(0)),
)


class Pair:
    """Both engines, told the same; the one also asked when it wants to be advanced."""

    def __init__(self, profile, answers=""):
        self.answers = answers  # what calls of a priority are answered; nothing: nobody knows
        self.model, self.reference = ModelledEngine(profile), ReferenceEngine(profile)
        self.both = self.model, self.reference
        self.now = self.calls = 0
        self.seen = []

    def tell(self, what, argument, after):
        self.now += after
        if what == "add":
            for prompt, completion_tokens, priority in argument:
                self.add(prompt, completion_tokens, priority)
        elif what == "advance":
            self.advance()
        elif what == "wake_up":
            self.wake_up()
        else:
            argument = str(argument) if what == "abort" else argument
            for engine in self.both:
                getattr(engine, what)(argument, self.now)
        self.compare()

    def add(self, prompt, completion_tokens, priority):
        whole = None
        if self.answers:
            answer = PromptPiece(f"{len(prompt)}{self.answers[priority]}", completion_tokens)
            whole = (*prompt, answer)
        call = EngineCall(
            id=str(self.calls),
            prompt=prompt,
            completion_tokens=completion_tokens,
            priority=priority,
            whole=whole,
        )
        self.calls += 1
        for engine in self.both:
            engine.add(call, self.now)

    def wake_up(self):
        at = self.model.next_at()
        if at is not None:
            self.now = max(self.now, at)
            self.advance()
        return at is not None

    def advance(self):
        seen, expected = (engine.advance(self.now) for engine in self.both)
        assert seen == expected
        self.seen += seen

    def compare(self):
        model, reference = self.both
        assert model.stats == reference.stats
        assert model.running == reference.running
        assert model.waiting == reference.waiting
        assert model.used_blocks == reference.used_blocks
        generated = [reference.generated(str(number), self.now) for number in range(self.calls)]
        told = {str(number): tokens for number, tokens in enumerate(generated) if tokens}
        assert model.generated(self.now) == told


@examples(300)
@given(profile=profiles, told=st.lists(facts, min_size=8, max_size=30))
def test_the_model_does_what_the_reference_does(profile, told):
    pair = Pair(profile)
    for fact in told:
        pair.tell(*fact)
    while pair.wake_up():
        pair.compare()

    assert pair.model.running == pair.model.waiting == pair.model.used_blocks == 0
    assert pair.reference.next_at() is None
    assert pair.seen == sorted(pair.seen, key=lambda progress: progress.at)


chat_calls = st.tuples(chats, st.integers(1, 25), st.integers(0, 2))
chat_facts = st.one_of(
    st.tuples(st.just("add"), st.lists(chat_calls, min_size=1, max_size=5), st.integers(0, 20)),
    facts,
)


@examples(300)
@given(profile=profiles, told=st.lists(chat_facts, min_size=8, max_size=30))
def test_answers_that_are_known_are_found_as_the_reference_finds_them(profile, told):
    pair = Pair(profile, answers="aba")
    for what, argument, after in told:
        pair.tell(what, argument, after)
    while pair.wake_up():
        pair.compare()

    assert pair.model.running == pair.model.waiting == pair.model.used_blocks == 0
    assert pair.reference.next_at() is None
