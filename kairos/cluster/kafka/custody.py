"""Who holds a partition, and which of its messages may be what kills those who hold it.

It is committed beside the watermark. A holder says who it is before it handles anything, and takes
that back when it ends in order. Whoever finds the name of one that is no more has seen a death.

- After the first death nothing is known, and nothing is held up: any message up to the end of the
  partition, as it was then, may be to blame. Each of these is noted before it begins.
- After the second the suspects are those that had begun, to the message. Each gets a trial: it
  begins once nothing else is in hand in the process, and that is noted, too (`trials.py`).
- Who dies over a trial, which is the third death or a later one, has convicted the message.

A suspect that is done is none any more. When the last is, all is as it was before the first death.
So one death, or two, of which no message is to blame cost a little time and nothing else.
"""

import hashlib

from kairos.cluster.kafka.offset_list import read_offsets, write_offsets
from kairos.core.errors import InvalidRequest

BEGUN_LIMIT = 64  # of those that are noted before they begin; in distances of four bytes
_DIGITS = 19  # of an offset

_HELD, _DEATHS, _UNTIL = "held", "deaths", "until"
_SUSPECTS, _BEGUN, _ALONE, _CONVICTED = "suspects", "begun", "alone", "convicted"


def holder_mark(member_id: str) -> str:
    """What the text calls a member of a group. Not its name: that may be of any length."""
    return hashlib.sha256(member_id.encode()).hexdigest()[:16]


class Custody:
    """Of one partition. Offsets are those of its messages."""

    def __init__(self) -> None:
        self.holder = ""  # the mark of the member that has it; empty: it was left in order
        self.deaths = 0  # in a row, with messages in hand that are not done yet
        self.convicted: int | None = None
        self.suspects: set[int] = set()  # after two deaths
        self.begun: set[int] = set()  # of those that are noted
        self.alone: int | None = None  # nothing else is in hand in its process
        self._until = 0  # after one death: each before it may be to blame

    def may_be_to_blame(self, offset: int) -> bool:
        """Then it is noted before it begins."""
        return offset in self.suspects or (self.deaths == 1 and offset < self._until)

    def begin(self, offset: int, *, alone: bool = False) -> None:
        self.begun.add(offset)
        if alone:
            self.alone = offset

    def go_on_beside(self, offset: int) -> None:
        """It is not alone any more, or it is over and what came of it is not safe yet."""
        if self.alone == offset:
            self.alone = None

    def done(self, offset: int) -> None:
        """Or not there any more."""
        self.begun.discard(offset)
        self.go_on_beside(offset)
        if self.convicted == offset:
            self.convicted = None
        if offset in self.suspects:
            self.suspects.discard(offset)
            if not self.suspects:
                self._acquit()

    def done_below(self, offset: int) -> None:
        """All before it is done."""
        if self.deaths == 1 and offset >= self._until:
            self._acquit()

    def holder_died(self, end: int) -> None:
        """`end`: of the partition, when that had become known."""
        if self.deaths < 2 and not self.begun:
            self.deaths, self._until = 1, end
        elif self.deaths == 1:
            self.deaths, self._until = 2, 0
            self.suspects = set(self.begun)
        elif self.begun:  # else it has died of something else
            self.deaths += 1
            if self.alone is not None:
                self.convicted = self.alone
        self.passed_on()

    def passed_on(self) -> None:
        """The last holder has nothing of it in hand any more."""
        self.holder = ""
        self.begun.clear()
        self.alone = None

    def _acquit(self) -> None:
        self.deaths, self._until = 0, 0
        self.begun.clear()
        self.alone = None

    def text(self, position: int) -> str:
        """`position`: the offset that is committed with it, before which all is done."""
        fields: dict[str, str] = {}
        if self.holder:
            fields[_HELD] = self.holder
        if self.deaths:
            fields[_DEATHS] = str(self.deaths)
            if self._until:
                fields[_UNTIL] = str(self._until)
            for name, offsets in ((_SUSPECTS, self.suspects), (_BEGUN, self.begun)):
                if offsets:
                    fields[name] = write_offsets(position - 1, sorted(offsets))
            for name, offset in ((_ALONE, self.alone), (_CONVICTED, self.convicted)):
                if offset is not None:
                    fields[name] = str(offset)
        return " ".join(f"{name}:{value}" for name, value in fields.items())


def read_custody(position: int, text: str) -> Custody:
    """Raises InvalidRequest: `Custody.text` cannot have written it."""
    custody = Custody()
    for field in text.split(" ") if text else ():
        name, _, value = field.partition(":")
        if name == _HELD and len(value) <= 64:
            custody.holder = value
        elif name == _DEATHS:
            custody.deaths = _number(value)
        elif name == _UNTIL:
            custody._until = _number(value)
        elif name == _SUSPECTS:
            custody.suspects = set(read_offsets(position - 1, value, BEGUN_LIMIT))
        elif name == _BEGUN:
            custody.begun = set(read_offsets(position - 1, value, BEGUN_LIMIT))
        elif name == _ALONE:
            custody.alone = _number(value)
        elif name == _CONVICTED:
            custody.convicted = _number(value)
        else:
            raise InvalidRequest("the metadata of a committed offset is not that of a Kairos bus")
    if (custody.deaths > 1) != bool(custody.suspects):
        raise InvalidRequest("the metadata of a committed offset is damaged: deaths and suspects")
    return custody


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise InvalidRequest("the metadata of a committed offset is damaged: no number")
    return int(text)
