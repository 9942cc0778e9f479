"""Whatever the order in which messages end, and whenever a member is replaced by the next: what was
done is not done again, and what was not is."""

import base64
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kairos.cluster.kafka import watermark
from kairos.cluster.kafka.custody import Custody
from kairos.cluster.kafka.share import pass_record, restored
from kairos.cluster.kafka.watermark import SPAN_LIMIT, TEXT_LIMIT, UNDONE_LIMIT, Watermark
from kairos.core import InvalidRequest


class WatermarkMachine(RuleBasedStateMachine):
    """A partition, and the members that have it one after the other."""

    def __init__(self):
        super().__init__()
        self.log = []  # the offsets that hold a message
        self.end = 0
        self.done = set()  # of which a member was told that it is done
        self.committed = (0, "")
        self.safe = set()  # what was done at the last commit
        self.take_over()

    def take_over(self):
        self.mark = Watermark(*self.committed)
        self.done = set(self.safe)
        offset = self.committed[0]
        self.unread = [each for each in self.log if each >= offset]
        self.in_hand = []

    @rule(gap=st.integers(0, 3))
    def append(self, gap):
        offset = self.end + gap
        self.log.append(offset)
        self.unread.append(offset)
        self.end = offset + 1

    @precondition(lambda self: self.unread and not self.mark.is_full)
    @rule()
    def read(self):
        offset = self.unread.pop(0)
        if self.mark.come(offset):
            assert offset not in self.done, "it would be done twice"
            self.in_hand.append(offset)
        else:
            assert offset in self.done, "it would never be done"

    @precondition(lambda self: not self.unread)
    @rule(marks=st.integers(0, 2))
    def pass_the_end(self, marks):
        self.end += marks
        self.mark.skip_to(self.end)

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data())
    def finish(self, data):
        offset = data.draw(st.sampled_from(self.in_hand))
        self.in_hand.remove(offset)
        self.mark.finish(offset)
        self.done.add(offset)

    @rule()
    def commit(self):
        self.committed = self.mark.state()
        self.safe = set(self.done)

    @rule()
    def crash(self):
        self.take_over()

    @invariant()
    def knows_what_is_done(self):
        assert [o for o in self.log if self.mark.is_done(o)] == sorted(self.done)

    @invariant()
    def goes_back_no_further_than_it_must(self):
        position, text = self.mark.state()
        undone = [o for o in self.log if o not in self.done]
        assert position <= min(undone, default=self.end)
        assert all(o in self.done for o in self.log if o < position)
        assert (text == "") == (not any(o > position for o in self.done))


TestWatermark = WatermarkMachine.TestCase


@given(
    gaps=st.lists(st.sampled_from([1, 127, 128, 16_384, 1 << 21, SPAN_LIMIT]), max_size=20),
    done=st.sets(st.integers(0, UNDONE_LIMIT)),
)
def test_the_text_is_bounded_and_means_the_same_to_the_next_member(gaps, done):
    mark, came = filled(gaps)
    for offset in [came[n] for n in done if n < len(came)]:
        mark.finish(offset)
    position, text = mark.state()
    heir = Watermark(position, text)
    assert len(text) <= TEXT_LIMIT
    assert heir.state() == (position, text)
    end = max((came[n] for n in done if n < len(came)), default=position)
    assert all(heir.is_done(o) == mark.is_done(o) for o in came if o <= end)


@given(
    before=st.integers(0, 9),
    done=st.sets(st.integers(0, 20)),
    suspects=st.sets(st.integers(0, 24), max_size=3),
    record=st.integers(0, 30),
)
def test_a_group_that_passes_a_record_does_again_nothing_and_leaves_out_nothing_behind_it(
    before, done, suspects, record
):
    mark, custody = Watermark(before), Custody()
    for offset in range(before, before + 25):
        mark.come(offset)
    for offset in done:
        mark.finish(before + offset)
    position, text = mark.state()
    undone = [o for o in range(position, before + 60) if o - before not in done]
    custody.suspects = {before + o for o in suspects - done}
    custody.deaths = 2 if custody.suspects else 0
    record += position

    to, metadata, left = pass_record(position, f"{text} {custody.text(position)}".strip(), record)

    heir, of_heir = restored(to, metadata)
    assert left == sum(each < record for each in undone)
    assert to > record
    assert not {*range(record + 1, to)} & {*undone}
    offsets = range(to, before + 60)
    assert [o for o in offsets if heir.is_done(o)] == [o for o in offsets if o not in undone]
    assert of_heir.suspects == {each for each in custody.suspects if each > record}
    assert bool(of_heir.deaths) == bool(of_heir.suspects)


def test_what_a_balancer_commits_is_kept_as_it_is():
    assert pass_record(3, "since=7,epoch=2", 9) == (10, "since=7,epoch=2", 6)


def test_the_longest_text_fits():
    longest = [1 << 21] * 120 + [16_384] * UNDONE_LIMIT
    mark, came = filled(longest)
    assert len(came) == UNDONE_LIMIT
    mark.finish(came[-1])
    _, text = mark.state()
    assert 2_900 < len(text) <= TEXT_LIMIT


def filled(gaps):
    """A watermark for which messages came, so far apart, until no more may; and their offsets."""
    mark, offset, came = Watermark(0), 0, []
    gaps_for_ever = chain(gaps, repeat(1))
    while not mark.is_full:
        mark.come(offset)
        came.append(offset)
        offset += next(gaps_for_ever)
    return mark, came


def test_one_message_that_takes_its_time_lets_a_million_others_pass():
    mark = Watermark(0)
    mark.come(0)
    for offset in range(1, 1_000_000, 2):
        mark.come(offset)
        mark.finish(offset)
    position, text = mark.state()
    assert position == 0
    assert len(text) < 20
    assert not mark.is_full


def test_nothing_more_may_come_beyond_the_span():
    mark = Watermark(0)
    mark.come(0)
    mark.come(SPAN_LIMIT)
    assert mark.is_full
    mark.finish(SPAN_LIMIT)
    position, text = mark.state()
    assert Watermark(position, text).is_done(SPAN_LIMIT)
    mark.finish(0)
    assert not mark.is_full


def test_a_message_that_was_committed_as_undone_and_is_gone_holds_up_nothing():
    mark = Watermark(0)
    for offset in range(4):
        mark.come(offset)
    mark.finish(1)
    mark.finish(3)
    heir = Watermark(*mark.state())
    assert heir.come(2)  # 0 was deleted meanwhile
    heir.finish(2)
    assert heir.state() == (4, "")


def test_a_full_watermark_takes_again_what_it_knows():
    mark = Watermark(0)
    while not mark.is_full:
        mark.come(mark._next)
    mark.finish(mark._next - 1)
    heir = Watermark(*mark.state())
    assert not heir.is_full
    assert [heir.come(offset) for offset in range(UNDONE_LIMIT)] == [True] * 699 + [False]


def test_however_much_is_known_as_undone_it_may_come():
    text = watermark.MARK + base64.b64encode(bytes([1] * UNDONE_LIMIT)).decode()
    mark = Watermark(0, text)
    assert len(mark._undone) == UNDONE_LIMIT
    assert not mark.is_full
    assert mark.come(0)


@given(st.text(max_size=50) | st.binary(max_size=50).map(lambda b: f"undone:{b.hex()}"))
def test_what_others_wrote_is_refused_or_harmless(text):
    try:
        mark = Watermark(5, text)
    except InvalidRequest:
        return
    position, again = mark.state()
    assert position >= 5
    assert len(again) <= TEXT_LIMIT


@given(st.binary(max_size=40))
def test_damage_is_refused_or_harmless(data):
    text = "undone:" + base64.b64encode(data).decode()
    try:
        mark = Watermark(5, text)
    except InvalidRequest:
        return
    assert mark.state() == (5, text)


@pytest.mark.parametrize(
    "text", ["learnt=7", "undone:", "undone:!", "undone:gA==", "undone:AA==", "x" * 5_000]
)
def test_texts_that_are_none_of_ours_are_refused(text):
    with pytest.raises(InvalidRequest, match="metadata"):
        Watermark(5, text)


def test_more_undone_messages_than_there_can_be_are_refused():
    steps = [1] * (UNDONE_LIMIT + 2)
    text = watermark.MARK + base64.b64encode(bytes(steps)).decode()
    with pytest.raises(InvalidRequest, match="malformed list of offsets"):
        Watermark(0, text)
