"""The baseline that schedules whole workflows: who keeps memory, who goes first, and where."""

import pytest

from experiments.program_scheduling import (
    BUFFER_TOKENS,
    FORCED_US,
    WINDOW,
    ProgramOrder,
    ProgramPlacement,
    Programs,
)
from kairos.dispatcher.ledger import Ledger
from kairos.events import Finished
from kairos.model import SECOND
from tests.support import build

pytestmark = pytest.mark.interpreted

FILL_US = 100.0 * SECOND  # to compute all of an instance's memory


def programs(gap_s=1.0):
    """That has seen as many gaps as it needs, all of the same length."""
    made = Programs()
    for n in range(WINDOW):
        request = build.request(f"past{n}", workflow_id=f"past{n}")
        made.ended(request, build.instance("z"), 10, FILL_US, 0)
        made.arrived(request, int(gap_s * SECOND))
    return made


def test_nothing_is_kept_before_gaps_are_known():
    made = Programs()
    made.ended(build.request("r", workflow_id="w"), build.instance("a"), 500, FILL_US, 0)
    assert made.kept_tokens("a", build.request("other"), 1) == 0


def test_memory_is_kept_for_the_next_call_of_the_workflow_and_for_no_other():
    made = programs(gap_s=1.0)
    own = build.request("r", workflow_id="w")
    made.ended(own, build.instance("a"), 500, FILL_US, 0)

    assert made.kept_tokens("a", build.request("other"), SECOND - 1) == 500
    assert made.kept_tokens("b", build.request("other"), SECOND - 1) == 0
    assert made.kept_tokens("a", own, SECOND - 1) == 0
    assert made.kept_tokens("a", build.request("other"), SECOND) == 0


def test_it_is_never_kept_for_more_than_ten_seconds():
    made = programs(gap_s=30.0)
    made.ended(build.request("r", workflow_id="w"), build.instance("a"), 500, FILL_US, 0)
    assert made.kept_tokens("a", build.request("other"), 10 * SECOND - 1) == 500
    assert made.kept_tokens("a", build.request("other"), 10 * SECOND) == 0


def test_active_programs_go_first_then_the_latest_paused_then_new_ones():
    made = programs(gap_s=1.0)
    for name, ended_at in (("long ago", 0), ("late", 5 * SECOND), ("active", 9 * SECOND)):
        made.ended(
            build.request(name, workflow_id=name), build.instance("a"), 10, FILL_US, ended_at
        )
    order = ProgramOrder(made)
    at = 9 * SECOND + 1
    names = ("newer", "new", "long ago", "late", "active")
    waiting = [
        build.request(f"{name} next", workflow_id=name, at=at + (name == "newer")) for name in names
    ]

    ordered = sorted(waiting, key=lambda each: order.key(each, order.state(each)))

    assert [each.workflow_id for each in ordered] == ["active", "late", "long ago", "new", "newer"]
    assert order.patience_us(waiting[0]) == FORCED_US


class Placed:
    def __init__(self, *instances, gap_s=1.0):
        self.ledger = Ledger(build.Lengths())
        for each in instances:
            self.ledger.join(each)
        self.programs = programs(gap_s)
        self.placement = ProgramPlacement(self.ledger, self.programs)

    def choose(self, request, at=0, busy=()):
        here = [each for each in self.ledger.instances.values() if each.id not in busy]
        away = [each for each in self.ledger.instances.values() if each.id in busy]
        chosen = self.placement.choose(request, here, away, at)
        return chosen and chosen.id


def test_a_workflow_stays_at_home_while_there_is_room():
    placed = Placed(*(build.instance(name, kv=2_000, seqs=9) for name in "abc"))
    first = build.request("w1", workflow_id="w", prompt=300)
    home = placed.choose(first)
    placed.ledger.book(first, home, 0)
    placed.ledger.release("w1", 10, Finished("w1", 300, 50))
    placed.ledger.book(build.request("other", prompt=1_000), home, 10)

    assert placed.choose(build.request("w2", workflow_id="w", prompt=400), at=20) == home
    assert placed.choose(build.request("w2", workflow_id="w", prompt=400), 20, busy=home) is None


def test_it_moves_only_where_there_is_clearly_more_room():
    placed = Placed(*(build.instance(name, kv=2_000, seqs=9) for name in "ab"))
    first = build.request("w1", workflow_id="w", prompt=300)
    home = placed.choose(first)
    (other,) = {"a", "b"} - {home}
    placed.ledger.book(first, home, 0)
    placed.ledger.release("w1", 10, Finished("w1", 300, 50))
    placed.ledger.book(build.request("fills it", prompt=1_850), home, 10)
    needs = build.request("w2", workflow_id="w", prompt=400)
    least = 1.2 * (400 + BUFFER_TOKENS)

    assert placed.choose(needs, at=20) == other
    placed.ledger.book(
        build.request("there", prompt=2_000 - int(least) - BUFFER_TOKENS + 1), other, 20
    )
    assert placed.choose(needs, at=20) is None


def test_what_is_kept_for_others_is_not_free():
    placed = Placed(build.instance("a", kv=2_000, seqs=9))
    placed.ledger.book(build.request("runs", prompt=500), "a", 0)
    placed.programs.ended(
        build.request("w1", workflow_id="w"), build.instance("a"), 1_000, FILL_US, 0
    )
    asks = {"prompt": 600}

    assert placed.choose(build.request("x", **asks), at=1) is None
    assert placed.choose(build.request("w2", workflow_id="w", **asks), at=1) == "a"
    assert placed.choose(build.request("x", **asks), at=SECOND) == "a"


def test_calls_that_run_are_expected_to_grow():
    placed = Placed(build.instance("a", kv=2_000, seqs=9))
    placed.ledger.book(build.request("runs", prompt=1_000), "a", 0)

    assert placed.choose(build.request("x", prompt=1_000 - 2 * BUFFER_TOKENS)) == "a"
    assert placed.choose(build.request("x", prompt=1_001 - 2 * BUFFER_TOKENS)) is None
