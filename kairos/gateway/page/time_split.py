"""Breakdown of a workflow's time from its start to its end.

Each instant counts for the most advanced activity of its calls: answering, else reading a prompt,
else waiting, else nothing that Kairos sees (agents, tools, people). So the parts add up to the
whole, however many of its calls ran at once. Not in the paper.
"""

from collections.abc import Iterable
from itertools import pairwise

import msgspec

from kairos.core import SECOND, CallRow


class TimeSplit(msgspec.Struct, frozen=True, kw_only=True):
    """Breakdown of time, in seconds."""

    answering_s: float = 0.0  # at least one call generates; all of it, where it is not streamed
    prompts_s: float = 0.0  # else: one's prompt is read, on its instance
    waiting_s: float = 0.0  # else: one waits in the queue
    elsewhere_s: float = 0.0  # else


def time_split(rows: Iterable[CallRow], started_at: int, until: int) -> TimeSplit:
    """Return the breakdown for these calls of one workflow, up to `until`. O(n log n)."""
    changes: list[tuple[int, int, int]] = []  # when, which part, by how much
    for row in rows:
        for part, stretch in enumerate(_stretches(row, until)):
            begins, ends = max(stretch[0], started_at), min(stretch[1], until)
            if begins < ends:
                changes += [(begins, part, 1), (ends, part, -1)]
    changes += [(started_at, 0, 0), (max(started_at, until), 0, 0)]
    changes.sort()
    spent, going = [0, 0, 0, 0], [0, 0, 0]
    for (at, part, by), (next_at, *_) in pairwise(changes):
        going[part] += by
        first = next((each for each in range(3) if going[each]), 3)
        spent[first] += next_at - at
    names = TimeSplit.__struct_fields__
    return TimeSplit(**{name: us / SECOND for name, us in zip(names, spent, strict=True)})


def _stretches(row: CallRow, until: int) -> tuple[tuple[int, int], ...]:
    """Return the intervals in which the call was answered, its prompt read, and it waited.

    An interval is empty if that never happened.
    """
    ended_at = until if row.ended_at is None else row.ended_at
    gone_at = ended_at if row.dispatched_at is None else row.dispatched_at
    answers_at = gone_at if row.first_token_at is None else row.first_token_at
    return (answers_at, ended_at), (gone_at, answers_at), (row.request.arrived_at, gone_at)
