"""What is committed of deaths and suspects: the next holder reads it as it was written, and what
others wrote there is refused or harmless."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kairos.cluster.kafka.custody import BEGUN_LIMIT, Custody, holder_mark, read_custody
from kairos.cluster.kafka.share import _TEXT_LIMIT
from kairos.cluster.kafka.watermark import SPAN_LIMIT, TEXT_LIMIT
from kairos.core import InvalidRequest


def fields(custody):
    return {**vars(custody)}


class CustodyMachine(RuleBasedStateMachine):
    """A partition of twelve messages, of which some are in hand, and those who hold it."""

    def __init__(self):
        super().__init__()
        self.custody = Custody()
        self.undone = set(range(12))
        self.in_hand = set()
        self.deaths_in_hand = dict.fromkeys(range(12), 0)  # of this message, that were noted
        self.custody.holder = "me"

    @precondition(lambda self: self.custody.alone is None and self.undone - self.in_hand)
    @rule(data=st.data(), alone=st.booleans())
    def begin(self, data, alone):
        offset = data.draw(st.sampled_from(sorted(self.undone - self.in_hand)))
        if self.custody.may_be_to_blame(offset):
            is_alone = alone and not self.in_hand and offset in self.custody.suspects
            self.custody.begin(offset, alone=is_alone)
            self.in_hand.add(offset)

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data())
    def finish(self, data):
        offset = data.draw(st.sampled_from(sorted(self.in_hand)))
        self.in_hand.discard(offset)
        self.undone.discard(offset)
        self.custody.done(offset)
        self.custody.done_below(min(self.undone, default=12))

    @rule()
    def die(self):
        alone, begun = self.custody.alone, set(self.custody.begun)
        for offset in begun:
            self.deaths_in_hand[offset] += 1
        before = self.custody.convicted
        self.custody.holder_died(12)
        if self.custody.convicted != before:
            assert self.custody.convicted == alone
            assert begun == {alone}
            assert self.custody.deaths >= 3
            assert self.deaths_in_hand[alone] >= 2  # what was in hand at the first is not known
        self.take()

    @rule()
    def hand_on(self):
        deaths, suspects = self.custody.deaths, set(self.custody.suspects)
        self.custody.passed_on()
        assert (self.custody.deaths, self.custody.suspects) == (deaths, suspects)
        self.take()

    def take(self):
        self.in_hand = set()
        assert not self.custody.begun
        assert self.custody.alone is None
        self.custody.holder = "next"

    @invariant()
    def is_read_as_it_was_written(self):
        position = min(self.undone, default=12)
        text = self.custody.text(position)
        assert fields(read_custody(position, text)) == fields(self.custody)

    @invariant()
    def suspects_are_undone(self):
        assert self.custody.suspects <= self.undone
        assert bool(self.custody.suspects) == (self.custody.deaths >= 2)


TestCustody = CustodyMachine.TestCase


def test_the_longest_text_fits_beside_the_longest_of_the_watermark():
    custody = Custody()
    custody.holder = holder_mark("m" * 1_000)
    custody.deaths = 10**9
    offsets = range(10**18, 10**18 + SPAN_LIMIT, SPAN_LIMIT // BEGUN_LIMIT)
    custody.suspects, custody.begun = set(offsets), set(offsets)
    custody.alone = custody.convicted = offsets[0]
    assert len(offsets) == BEGUN_LIMIT
    text = custody.text(10**18)
    assert len(text) + 1 + TEXT_LIMIT <= _TEXT_LIMIT
    assert fields(read_custody(10**18, text)) == fields(custody)


@given(
    st.text(max_size=60)
    | st.lists(
        st.builds(
            "{}:{}".format,
            st.sampled_from(["held", "deaths", "until", "suspects", "begun", "alone", "x"]),
            st.text("0123456789abcdefgh=/+-", max_size=12),
        ),
        max_size=5,
    ).map(" ".join)
)
def test_what_others_wrote_is_refused_or_harmless(text):
    try:
        custody = read_custody(5, text)
    except InvalidRequest:
        return
    custody.holder_died(9)
    assert len(custody.text(5)) < _TEXT_LIMIT


@pytest.mark.parametrize(
    "text",
    [
        "deaths:2",
        "deaths:-1",
        "deaths:x",
        "suspects:AQ==",
        "begun:!",
        "alone:" + "9" * 30,
        "learnt=7",
    ],
)
def test_texts_that_are_none_of_ours_are_refused(text):
    with pytest.raises(InvalidRequest, match="metadata"):
        read_custody(5, text)
