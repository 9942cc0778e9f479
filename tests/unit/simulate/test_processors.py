"""Engines of a simulated flow that embed, search and rank in batches."""

import pytest

from kairos.core import SECOND
from kairos.simulate.clock import VirtualClock
from kairos.simulate.processors import (
    TEOLA,
    BatchEngines,
    ProcessorTimes,
    SimulatedProcessors,
    Surroundings,
)
from kairos.workflows import RunProcessor, topology_aware
from kairos.workflows.execute.batching import blind


def ends(adding, times, order=topology_aware):
    """When each of (at, query, depth, items) ends, in µs, in their order."""
    clock, found = VirtualClock(), {}
    engines = BatchEngines(clock, times, order)
    for number, (at, query, depth, items) in enumerate(adding):

        def add(number=number, query=query, depth=depth, items=items):
            engines.add((0, query), depth, items, lambda: found.setdefault(number, clock.now()))

        clock.call_at(at, add)
    clock.run()
    return [found[number] for number in range(len(adding))]


@pytest.mark.parametrize(("batch", "s"), [(4, 1.8), (16, 1.35)])
def test_48_chunks_take_as_long_as_teola_s_figure_4_says(batch, s):
    times = ProcessorTimes(
        fixed_us=TEOLA["embed"].fixed_us, item_us=TEOLA["embed"].item_us, batch=batch
    )
    assert ends([(0, 1, 0, 48)], times) == [s * SECOND]


def test_what_comes_at_the_same_instant_goes_together():
    times = ProcessorTimes(fixed_us=100, item_us=1, batch=16)
    assert ends([(0, 1, 0, 2), (0, 2, 0, 3)], times) == [105, 105]


def test_what_comes_while_an_engine_is_busy_waits_for_it():
    times = ProcessorTimes(fixed_us=100, item_us=1, batch=16)
    assert ends([(0, 1, 0, 1), (50, 2, 0, 1)], times) == [101, 202]


def test_a_second_engine_takes_what_waits():
    times = ProcessorTimes(fixed_us=100, item_us=1, batch=16, engines=2)
    assert ends([(0, 1, 0, 1), (50, 2, 0, 1)], times) == [101, 151]


def test_the_order_says_what_goes_first():
    times = ProcessorTimes(fixed_us=100, batch=1)
    waiting = [(0, 1, 0, 1), (10, 1, 1, 1), (10, 1, 9, 1)]
    assert ends(waiting, times, blind) == [100, 200, 300]
    assert ends(waiting, times, topology_aware) == [100, 300, 200]


def processor(kind, **arguments):
    return RunProcessor(1, 0, "n", 0, 1, "n", "s", 0, kind, None, arguments, None, depth=0)


@pytest.mark.parametrize(
    ("command", "us"),
    [
        (processor("embed", texts=["a", "b", "c"]), 3),
        (processor("embed", texts="a"), 1),
        (processor("search", vectors=["AAAAAA=="] * 2, collection="kept", top_k=1), 2),
        (processor("rerank", query="a", passages=["a", {"text": "b"}], top_k=1), 2),
        (processor("ingest", texts=["a", "b"], vectors=["AAAAAA=="] * 2), 2),
    ],
)
def test_the_time_is_that_of_a_command_s_items(command, us):
    clock, told = VirtualClock(), []
    times = {command.kind: ProcessorTimes(item_us=1)}
    processors = SimulatedProcessors(
        clock, Surroundings(processors=times), lambda *answer: told.append(answer)
    )

    processors.run(command)
    clock.run()

    assert clock.now() == us
    [(call, _, took_us)] = told
    assert (call, took_us) == (1, us)


def test_a_kind_without_times_takes_none():
    clock, told = VirtualClock(), []
    SimulatedProcessors(clock, Surroundings(), lambda *answer: told.append(answer)).run(
        processor("embed", texts=["a"] * 5_000)
    )
    clock.run()

    assert (clock.now(), len(told)) == (0, 1)
