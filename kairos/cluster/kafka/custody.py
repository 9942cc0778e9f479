"""Custody of a partition: its current holder, and which messages may have killed earlier holders.

The custody is committed together with the watermark. A holder (a member of the consumer group)
writes its mark before it handles anything, and removes it on a clean shutdown. A new holder that
finds the mark of a member that has left the group has detected a death.

- After the first death, any message up to the end of the partition at that time may be to blame.
  Nothing is delayed, but each of these messages is noted before its handler begins.
- After the second death, the suspects are the messages noted as begun. Each gets a trial: it runs
  while nothing else runs in the process, and that is noted, too (`trials.py`).
- A death during a trial, which is the third or a later one, convicts the message.

A message that is handled is not a suspect any more. Once the last suspect is handled, the state is
reset to that before the first death. So one or two deaths that no message caused cost some time
and nothing else.
"""

import hashlib

from kairos.cluster.kafka.watermark import read_offsets, write_offsets
from kairos.core import InvalidRequest

BEGUN_LIMIT = 64  # of the messages noted before they begin; as deltas of four bytes
_DIGITS = 19  # of an offset

_HELD, _DEATHS, _UNTIL = "held", "deaths", "until"
_SUSPECTS, _BEGUN, _ALONE, _CONVICTED = "suspects", "begun", "alone", "convicted"


def holder_mark(member_id: str) -> str:
    """Return a member's mark: a short hash of its id, which may be of any length."""
    return hashlib.sha256(member_id.encode()).hexdigest()[:16]


class Custody:
    """Custody of one partition. Offsets refer to its messages."""

    def __init__(self) -> None:
        self.holder = ""  # the mark of the member that has it; empty: released cleanly
        self.deaths = 0  # consecutive deaths with unhandled messages in progress
        self.convicted: int | None = None
        self.suspects: set[int] = set()  # after two deaths
        self.begun: set[int] = set()  # messages noted as begun
        self.alone: int | None = None  # the message that runs alone in its process
        self._until = 0  # after one death: each message before this offset may be to blame

    def may_be_to_blame(self, offset: int) -> bool:
        """Return whether the message may have killed a holder, and is noted before it begins."""
        return offset in self.suspects or (self.deaths == 1 and offset < self._until)

    def begin(self, offset: int, *, alone: bool = False) -> None:
        self.begun.add(offset)
        if alone:
            self.alone = offset

    def go_on_beside(self, offset: int) -> None:
        """Note that a message no longer runs alone, or has ended but is not committed yet."""
        if self.alone == offset:
            self.alone = None

    def done(self, offset: int) -> None:
        """Note that a message is handled, or no longer exists."""
        self.begun.discard(offset)
        self.go_on_beside(offset)
        if self.convicted == offset:
            self.convicted = None
        if offset in self.suspects:
            self.suspects.discard(offset)
            if not self.suspects:
                self._acquit()

    def done_below(self, offset: int) -> None:
        """Note that all messages before the offset are handled."""
        if self.deaths == 1 and offset >= self._until:
            self._acquit()

    def holder_died(self, end: int) -> None:
        """Record a death of the holder; `end`: of the partition when that was detected."""
        if self.deaths < 2 and not self.begun:
            self.deaths, self._until = 1, end
        elif self.deaths == 1:
            self.deaths, self._until = 2, 0
            self.suspects = set(self.begun)
        elif self.begun:  # else no suspect was running when the holder died
            self.deaths += 1
            if self.alone is not None:
                self.convicted = self.alone
        self.passed_on()

    def passed_on(self) -> None:
        """Clear the holder, and what it had begun."""
        self.holder = ""
        self.begun.clear()
        self.alone = None

    def _acquit(self) -> None:
        self.deaths, self._until = 0, 0
        self.begun.clear()
        self.alone = None

    def text(self, position: int) -> str:
        """Return the custody as text for the metadata of a commit of that position."""
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
    """Parse what `Custody.text` wrote. Raises InvalidRequest: The text is malformed."""
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
        raise InvalidRequest("the metadata of a committed offset is damaged: not a number")
    return int(text)
