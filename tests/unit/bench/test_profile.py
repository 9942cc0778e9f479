"""`make profile`: which part of a call's way code belongs to."""

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from bench import parts, profile, profile_page
from bench.parts import CHOICE, END, FORWARDING, INFERENCE, LOOP, OTHER, SERVER, THREADS
from bench.profile_page import Cell, Row
from bench.sampled import Counted
from kairos.events import Arrived, Finished
from kairos.model import Request

REQUEST = Request(
    id="r", workflow_id="w", workflow_started_at=0, arrived_at=0, prompt_tokens=1,
    completion_tokens=1,
)  # fmt: skip


def part_in(*modules: str, event: object = None) -> tuple[str, str | None]:
    """Where a stack of one function of each module is, the outermost first; those of the balancer
    are its `handle`."""
    found: list[tuple[str, str | None]] = []

    def look(_: object) -> None:
        found.append(parts.part_of(sys._getframe(1)))

    inner: Callable[[object], object] = look
    for module in reversed(modules):
        name = "handle" if module == "kairos.balancer" else "work"
        scope: dict[str, Any] = {"__name__": module}
        exec(f"def {name}(inner, event):\n    x = 1\n    inner(event)\n    return x", scope)
        inner = partial(scope[name], inner)
    inner(event)
    return found[0]


RUNNER = "asyncio.runners"


@pytest.mark.parametrize(
    ("modules", "part"),
    [
        (["uvicorn.protocols.http"], SERVER),
        (["kairos.live.proxy.call", "uvicorn.protocols.http"], SERVER),
        (["kairos.live.proxy.call", "json.decoder"], FORWARDING),
        (["kairos.live.frontend.gateway", "kairos.live.request.identity.passages"], INFERENCE),
        (["asyncio.events"], LOOP),
    ],
)
def test_the_innermost_module_that_is_named_decides(modules, part):
    assert part_in(RUNNER, *modules) == (part, None)


def test_code_that_nothing_names_is_other_and_says_where_it_is():
    part, place = part_in(RUNNER, "some.library")
    assert part == OTHER
    assert place is not None
    assert place.startswith("some.library.")


def test_the_brains_time_counts_for_the_fact_and_for_the_choice_of_an_instance():
    queue, room = "kairos.scheduler.queue", "kairos.dispatcher.available"
    for event, part in ((Arrived(REQUEST), parts.ARRIVAL), (Finished("r"), END)):
        assert part_in(RUNNER, "kairos.balancer", queue, event=event) == (part, None)
        assert part_in(RUNNER, "kairos.balancer", room, event=event) == (CHOICE, None)


def test_every_module_that_is_named_is_there():
    for module in (*parts.MODULES, *parts.CHOOSES):
        if module.startswith("kairos."):
            assert importlib.util.find_spec(module) is not None, module


def test_samples_stand_for_the_main_threads_time():
    counted = Counted(3_000_000, 500_000, {SERVER: 1, OTHER: 2}, {"a.b": 2})
    found = profile_page.by_part(counted, calls=10)
    assert found[SERVER] == pytest.approx(100)
    assert found[OTHER] == pytest.approx(200)
    assert found[THREADS] == pytest.approx(50)
    assert sum(found.values()) == pytest.approx(350)
    assert profile_page.largest(counted, 10) == {"a.b": pytest.approx(200)}


def test_all_kinds_are_profiled_with_each_pool_with_and_without_a_queue():
    made = profile.cells()
    assert len(set(made)) == len(made)
    for kind in profile_page.KINDS:
        of = {(c.instances, c.queue) for c in made if c.kind == kind and c.metrics}
        assert of == {(number, queue) for number in (1, 8, 64) for queue in (False, True)}


def test_the_page_has_a_table_for_each_kind_that_was_measured():
    cell = Cell(kind="named", instances=8, queue=True, metrics=True)
    row = Row(
        cell=cell, calls=10, waiting=96, samples=3, parts=dict.fromkeys(parts.PARTS, 2.0),
        other={}, commit="abc", date="2026-11-23", machine="a machine",
    )  # fmt: skip
    text = profile_page.page([row])
    assert "| us a call | 8, queue |" in text
    assert f"| **together** | **{2 * len(parts.PARTS)}** |" in text
    assert "| calls that wait | 96 |" in text
    assert profile_page.KINDS["anonymous"] not in text


def test_the_page_that_is_kept_is_what_its_rows_say():
    if profile_page.PAGE.exists():
        assert profile_page.PAGE.read_text() == profile_page.page(
            profile_page.read(profile_page.ROWS)
        )
