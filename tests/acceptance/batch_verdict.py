"""What must hold of a batch that went through kills: each line once, with the answer to its own
question, in the order of the input; and nothing is left behind."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from kairos.core import Finished, Record
from tests.support.simulate.standin import Script, ScriptLimits, StandInBody, chat_prompt

_SHOWN = 5


class Line(msgspec.Struct, frozen=True):
    """Of the input: its name, and what the engines answer to it."""

    custom_id: str
    answer: str


def expected(custom_id: str, body: dict[str, Any], seed: int) -> Line:
    """What a stand-in of this seed says, whichever of them is asked, and how often."""
    asked = msgspec.convert(body, StandInBody)
    limits = ScriptLimits(max_tokens=body["max_tokens"])
    return Line(custom_id, "".join(Script((), seed).reply(chat_prompt(asked), limits, None).tokens))


def of_output(lines: Sequence[Line], output: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Each line of the input has one of the output."""
    came = Counter(each["custom_id"] for each in output)
    given = {each.custom_id: each.answer for each in lines}
    yield from _told("are lost", [each for each in given if each not in came])
    yield from _told("are there twice", [each for each, times in came.items() if times > 1])
    yield from _told("were never asked", [each for each in came if each not in given])
    wrong = [
        each["custom_id"]
        for each in output
        if each["error"] is not None or _said(each) != given.get(each["custom_id"])
    ]
    yield from _told("have another answer than their own", wrong)
    used = Counter(each["response"]["body"]["id"] for each in output if each["response"])
    yield from _told("answers are used twice", [each for each, times in used.items() if times > 1])
    if came.keys() == given.keys() and [*came] != [*given]:
        yield "the output is not in the order of the input"


def _said(line: dict[str, Any]) -> str:
    said: str = line["response"]["body"]["choices"][0]["message"]["content"]
    return said


def of_batch(batch: Any, count: int) -> Iterator[str]:
    """As its client sees it."""
    counts = batch.request_counts
    seen = (batch.status, counts.total, counts.completed, counts.failed, batch.error_file_id)
    if seen != ("completed", count, count, 0, None):
        yield f"it is {seen} in the end"


def in_vain(records: Iterable[Record], batch_id: str) -> int:
    """Answers of engines that nobody got: whoever was to keep them was killed."""
    ends = Counter(
        each.event.request_id
        for each in records
        if isinstance(each.event, Finished) and each.event.request_id.startswith(batch_id)
    )
    return sum(times - 1 for times in ends.values())


def _told(what: str, which: Sequence[str]) -> Iterator[str]:
    if which:
        yield f"{len(which)} {what}: {', '.join(which[:_SHOWN])}"
